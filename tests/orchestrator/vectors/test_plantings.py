"""The list of plantings: drawn from a seed, one third of kinds that were held out."""

from dataclasses import fields

from tests.orchestrator.vectors.plantings import HELD_OUT, OPEN, Pipeline, draw


def test_a_seed_draws_the_same_plantings_again_a_third_of_them_held_out():
    drawn = draw(1)
    assert [(each.kind.name, each.embedder, each.changes) for each in drawn] == [
        (each.kind.name, each.embedder, each.changes) for each in draw(1)
    ]
    assert len(drawn) == len({each.kind.name for each in drawn}) == 20
    assert sum(each.is_held_out for each in drawn) >= 20 / 3


def test_plantings_change_settings_of_the_pipeline():
    names = {field.name for field in fields(Pipeline)}
    for seed in range(20):
        for each in draw(seed):
            assert {*each.changes, *each.kind.base} <= names
            assert each.changes


def test_no_kind_is_both_open_and_held_out():
    assert not {kind.name for kind in OPEN} & {kind.name for kind in HELD_OUT}
