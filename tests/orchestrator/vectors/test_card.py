"""The card of a feature set: which keys it has, and that anything else is refused with its name."""

from pathlib import Path

import pytest

from ctvr.orchestrator.vectors.card import KEYS, is_same_name, read_card
from tests.refusing import refuses


@pytest.fixture
def card(tmp_path: Path):
    def write(text: str):
        file = tmp_path / "features.yaml"
        file.write_text(text)
        return read_card(file)

    return write


def test_a_card_gives_its_keys_and_names_those_that_are_missing(card):
    found = card(
        "embedder: org/model\nlibraries:\n  torch: 2.6\nnormalisation: unit\nwidth: 512\nprompt: a video of {}\n"
    )
    assert (found.embedder, found.width, found.is_unit) == ("org/model", 512, True)
    assert found.libraries == {"torch": "2.6"}
    *stated, missing = found.lines()
    assert [line.partition(":")[0] for line in stated] == ["embedder", "libraries", "normalisation", "prompt", "width"]
    assert missing.startswith("not stated: ")
    assert set(missing.partition(": ")[2].split(", ")) == set(KEYS) - {line.partition(":")[0] for line in stated}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("embedder: a\npoling: mean", ["poling", "pooling"]),
        ("revision: 1", []),
        ("embedder:", []),
        ("- embedder", []),
        ("embedder: a\nnormalisation: yes please", ["yes please"]),
        ("embedder: a\nwidth: many", ["many"]),
        ("embedder: a\nwidth: 0", ["0"]),
        ("embedder: [a]", ["embedder"]),
        ("embedder: a\nlibraries: torch", ["torch"]),
        ("embedder: a\nlibraries: {torch: [2]}", ["torch"]),
        ("embedder: a\nprompt: true", ["prompt"]),
        ("embedder: a\nembedder: b", ["embedder"]),
        ("embedder: !!python/object/apply:os.system [ls]", []),
        ("embedder: !!binary aGk=", ["embedder"]),
        ("embedder: !mine x", []),
        ("embedder: 'a\x07'", []),
        ("embedder: a: b", []),
    ],
)
def test_a_wrong_card_is_refused(card, text, values):
    with refuses(*values, where="features.yaml", remedy=True):
        card(text)


def test_cards_differ_in_what_both_state_except_licence_and_author(card):
    first = card("embedder: a\nrevision: 1\npooling: Mean\nlicence: x\nlibraries: {torch: 2.6, numpy: 2}")
    second = card("embedder: a\nrevision: 2\npooling: mean\nlicence: y\nlibraries: {torch: 2.7}\ndtype: float16")
    assert first.differences(second) == {"revision": ("1", "2"), "libraries.torch": ("2.6", "2.7")}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [("org/CLIP-B", "clip_b", True), ("a", "a", True), ("clip-b", "clip-l", False)],
)
def test_an_embedder_is_the_same_without_its_owner_and_case(first, second, same):
    assert is_same_name(first, second) is same
