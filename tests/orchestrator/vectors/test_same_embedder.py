"""A change of an embedder's pipeline is found and named, and rounding is not an alarm."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.vectors.card import Card
from ctvr.orchestrator.vectors.causes import WORDS, explain
from ctvr.orchestrator.vectors.same_embedder import VERDICTS, compare
from tests.orchestrator.vectors.embedders import embed
from tests.orchestrator.vectors.measure import canaries, count_false_alarms, diagnose
from tests.orchestrator.vectors.plantings import FINAL_SEED, HELD_OUT, OPEN, Pipeline, Planting, draw

RNG = np.random.default_rng


@pytest.mark.parametrize("kind", OPEN, ids=lambda kind: kind.name)
def test_a_change_of_the_random_filters_is_named(kind):
    result = diagnose(Planting(kind, "random-conv", kind.draw(RNG(3)), False))
    assert result.cause.key in kind.causes
    assert result.verdict != "equal"
    assert WORDS[result.cause.key] in "\n".join(result.lines())
    assert VERDICTS[result.verdict] in result.lines()[0]


def test_known_kinds_of_causes_are_those_of_the_list():
    assert {cause for kind in (*OPEN, *HELD_OUT) for cause in kind.causes} <= set(WORDS)


def test_the_same_vectors_are_equal():
    vectors = canaries(embed("random-conv", Pipeline()))
    assert compare(vectors, vectors).verdict == "equal"


def test_rounding_is_not_an_alarm():
    assert set(count_false_alarms(11, 12, ("unit",))) <= {"equal", "rounding"}


def test_a_change_of_one_side_is_said_to_be_of_that_side():
    result = diagnose(Planting(OPEN[1], "random-conv", {"channels": "bgr"}, False))
    assert result.sides["texts"].key == "equal"
    assert result.cause.evidence.startswith("videos only")


@pytest.mark.parametrize(
    ("verdict", "changes"),
    [
        ("same order", {"norm": "none"}),
        ("a fixed map away", {"rotation": 3}),
        ("another space", {"replaced": True, "seed": 4}),
        ("rounding", {"store": "float16"}),
    ],
)
def test_a_verdict_says_whether_both_may_be_mixed(verdict, changes):
    old, new = (canaries(embed("random-conv", Pipeline(**each))) for each in ({}, changes))
    result = compare(old, new)
    assert result.verdict == verdict
    assert result.is_mixable == (verdict in ("same order", "rounding"))


def test_cards_decide_between_arithmetic_and_revision():
    old, new = (canaries(embed("random-conv", Pipeline(**each))) for each in ({}, {"noise": 0.015}))
    card = Card(Path("features.yaml"), {"embedder": "a", "dtype": "float32", "revision": "1"})
    other = replace(card, values={**card.values, "dtype": "bfloat16"})
    assert compare(old, new).cause.key == "revision"
    assert compare(old, new, (card, other)).cause.key == "bf16"
    newer = replace(other, values={**other.values, "revision": "2"})
    result = compare(old, new, (card, newer))
    assert result.cause.key == "revision"
    assert "cards: revision was 1, and is 2" in result.lines()


@pytest.mark.parametrize(("key", "changes"), [("prompt", {"noisy": "texts"}), ("pooling", {"noisy": "videos"})])
def test_a_card_names_the_input_where_a_small_change_of_one_side_leaves_it_open(key, changes):
    old, new = (canaries(embed("random-conv", Pipeline(**each))) for each in ({}, {"noise": 0.05, **changes}))
    card = Card(Path("features.yaml"), {"embedder": "a", key: "one"})
    assert compare(old, new).cause.key == "revision"
    assert compare(old, new, (card, replace(card, values={"embedder": "a", key: "two"}))).cause.key == key


def test_a_tower_of_another_width_is_another_model():
    old, new = (canaries(embed("random-conv", Pipeline(**each))) for each in ({}, {"noise": 0.05}))
    new.sides["texts"] = np.random.default_rng(0).normal(size=(16, 5))
    result = compare(old, new)
    assert (result.verdict, result.sides["texts"].key) == ("another space", "model")


def test_colours_that_are_not_exchanged_are_not_called_bgr():
    result = diagnose(Planting(HELD_OUT[1], "random-conv", {"pixels": "plain"}, True))
    assert result.cause.key == "crop"


def test_a_prompt_of_the_list_is_named():
    old, new = embed("random-conv", Pipeline()).texts, embed("random-conv", Pipeline(prefix="query: ")).texts
    assert "'query: {}', which is added" in explain("texts", old, new).evidence
    assert "'query: {}', which is missing" in explain("texts", new, old).evidence


@pytest.mark.slow
def test_plantings_of_the_final_seed_are_found():
    results = [(planting, diagnose(planting)) for planting in draw(FINAL_SEED)]
    assert [planting.kind.name for planting, result in results if result.cause.key in ("equal", "rounding")] == []
    right = [result.cause.key in planting.kind.causes for planting, result in results]
    assert sum(right) >= 16


@pytest.mark.slow
def test_no_rounding_among_200_repetitions_is_an_alarm():
    assert set(count_false_alarms(FINAL_SEED, 200)) <= {"equal", "rounding"}
