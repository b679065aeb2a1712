"""Arguments of a command have the same meaning before, between and after its options."""

import itertools
from pathlib import Path

import pytest

from ctvr.orchestrator.cli.main import make_parser

# Command, its arguments, its options with their values
COMMANDS = [
    (["streams", "import"], ["csv", "table=t.csv", "tasks=month"], [["--videos", "v"], ["--name=x"]]),
    (["streams", "export"], ["shapes-5", "folder", "data.num_frames=2"], [["--features"], ["--form", "npy"]]),
    (["run"], ["lwf", "shapes-5", "optim.lr=-1"], [["--smoke"], ["--runs", "r"]]),
    (["sweep"], ["lwf", "shapes-5", "optim.epochs=1"], [["--trials", "3"], ["--smoke"]]),
    (["reproduce"], ["tempme/1", "seed=1"], [["--list"], ["--runs=r"]]),
    (["methods", "check"], ["lwf", "method.base=xpool"], [["--config", "c.yaml"], ["--trust=m:C"]]),
    (["cache", "build"], ["shapes-5", "data.num_frames=2"], [["--features"], ["--store", "s"]]),
    (["search"], ["a red box", "a ball"], [["-k", "3"], ["--model", "m"]]),
    (["runs", "rm"], ["one", "two", "three"], [["--trust", "m:C"], ["--runs", "r"]]),
    (["runs", "explain"], ["key", "other", "column"], [["--runs", "r"]]),
    (["plot"], ["attention", "model"], [["--inputs", "a.mp4", "b.mp4"], ["--count", "-1"]]),
    (["migrate"], ["old", "new"], [["--runs", "r"]]),
    (["table"], ["name"], [["--direction", "v2t"]]),
]


def parsed(words: list[str]) -> dict[str, object]:
    found = vars(make_parser().parse_args(words))
    return {name: value for name, value in found.items() if name not in ("words", "run")}


@pytest.mark.parametrize(("command", "words", "options"), COMMANDS, ids=lambda part: " ".join(map(str, part)))
def test_the_place_of_an_option_changes_nothing(command: list[str], words: list[str], options: list[list[str]]) -> None:
    expected = parsed([*command, *words, *(word for option in options for word in option)])
    given = [value for name, value in expected.items() if value in (words, words[1:], *words)]
    assert given or "overrides" in expected
    for places in itertools.product(range(len(words) + 1), repeat=len(options)):
        mixed = list[str]()
        for at, word in enumerate([*words, ""]):
            mixed += [part for place, option in zip(places, options) if place == at for part in option]
            mixed += [word] if word else []
        if any(mixed[at - 1 : at] == ["b.mp4"] for at in map(mixed.index, words)):
            continue  # a list of files ends at the next option
        assert parsed([*command, *mixed]) == expected, mixed


def test_after_two_dashes_every_word_is_an_argument() -> None:
    expected = parsed(["search", "a box", "b", "c", "--model", "m"])
    assert parsed(["search", "a box", "--model", "m", "--", "b", "c"]) == expected
    assert parsed(["search", "--model", "m", "--", "--b"])["text"] == ["--b"]


@pytest.mark.parametrize(
    ("before", "rest"),
    [
        (["streams", "--runs", "r"], ["check", "mine", "--features", "f"]),
        (["streams", "--runs=r"], ["export", "shapes-5", "folder", "--files"]),
        (["runs", "--runs", "show"], ["show", "one"]),  # a folder with the name of an action
        (["cache", "--runs", "r"], ["gc"]),  # an option of the action alone
        (["runs", "--runs", "r"], ["rm", "one", "two", "--trust", "m:C"]),
    ],
)
def test_an_option_before_the_action_counts(before: list[str], rest: list[str]) -> None:
    assert parsed([*before, *rest]) == parsed([before[0], *rest, *before[1:]])


def test_an_option_without_an_action_is_that_of_the_list() -> None:
    assert parsed(["runs", "--runs", "show"])["runs"] == Path("show")
