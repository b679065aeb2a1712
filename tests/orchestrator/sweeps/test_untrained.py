import pytest

from ctvr.orchestrator.learning.run.execute import has_training
from ctvr.orchestrator.settings.presets import presets_of, with_recipe
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps.rerun import baseline
from ctvr.orchestrator.sweeps.untrained import untrained_baselines, untrained_rows
from ctvr.orchestrator.tables.presets import TableRow

SMALL = {"stream": "s", "data.num_frames": 4}
RECOMMENDED = {"preset": "paper"}


def resolved(row):
    recipe = with_recipe(row.method, row.presets, RECOMMENDED)
    return resolve({**SMALL, **row.settings, "method": row.method}, {}, recipe)


def planned(*rows):
    made = [row if isinstance(row, TableRow) else TableRow(name=row) for row in rows]
    return [(row, resolved(row)) for row in made]


def test_rows_with_another_start_have_an_untrained_control():
    rows = planned("zero_shot", "clip4clip", "xpool", "framefusion_moe", "camoe", "camoe:dsl")
    found = untrained_rows(rows)
    assert [(row.name, control.name) for row, control in found] == [
        ("xpool", "xpool:untrained"),
        ("camoe", "camoe:untrained"),
        ("camoe:dsl", "camoe:dsl,untrained"),
    ]
    for _, control in found:
        assert control.control
        assert not control.searched
        assert "control" in control.notes[0]
        assert not has_training(resolved(control))


def test_a_table_has_controls_of_its_reference_once():
    assert untrained_rows(planned("clip4clip", "xpool")) == []
    assert untrained_rows(planned("zero_shot", "xpool", "xpool:untrained")) == []


def test_rows_that_start_alike_share_a_control_but_not_over_other_data():
    ((row, control),) = untrained_rows(planned("zero_shot", "clip_vip", "tvr_plus_cl"))
    assert row.name == "clip_vip"
    assert "clip_vip and tvr_plus_cl" in control.notes[0]
    longer = TableRow(name="longer captions", method="tvr_plus_cl", settings={"data.max_tokens": 12})
    assert len(untrained_rows(planned("zero_shot", "clip_vip", longer))) == 2


def test_a_control_of_a_row_with_a_name_of_its_own_is_named_after_it():
    row = TableRow(name="LwF of X-Pool", method="lwf", settings={"method.base": "xpool"})
    ((_, control),) = untrained_rows(planned("zero_shot", row))
    assert control.name == "LwF of X-Pool, untrained"
    assert control.settings == row.settings


@pytest.mark.parametrize(("method", "expected"), [("structalign", ("structalign:untrained",)), ("framefusion_moe", ())])
def test_a_search_has_the_control_of_its_method_and_zero_shot_clip(method, expected):
    assert untrained_baselines(method, (), ("zero_shot", "clip4clip")) == expected
    assert untrained_baselines(method, (), ("clip4clip",)) == ()


def test_epochs_given_for_all_rows_do_not_train_the_control(small_stream):
    made = baseline("xpool:untrained", small_stream, "s", {"optim.epochs": 3}, 1)
    assert made.experiment.optim.epochs == 0
    assert baseline("xpool", small_stream, "s", {"optim.epochs": 3}, 1).experiment.optim.epochs == 3


def test_every_method_has_the_control():
    assert presets_of("tome")["untrained"] == {"method.reducer.name": "tome", "optim.epochs": 0}
    assert presets_of("structalign")["untrained"] == {"optim.epochs": 0}
