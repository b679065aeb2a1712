"""Remembered answers equal the computed ones, are valid for one state of the sources, and cause no error."""

import os
from pathlib import Path

import pytest

from ctvr.orchestrator import memo


@pytest.fixture
def calls(monkeypatch, tmp_path) -> list[int]:
    """Remember answers below `tmp_path`; every call of `answer` adds to the list."""
    monkeypatch.setattr(memo, "_is_enabled", True)
    monkeypatch.setenv("CTVR_CACHE", str(tmp_path))
    return []


def ask(calls: list[int], question: list[object], answer: object = None) -> object:
    return memo.remembered(question, lambda: calls.append(1) or answer)


def test_an_answer_is_computed_once_and_keeps_its_order(calls):
    answer = {"b": 1.5, "a": [1, None, float("inf")], "c": (2, "é")}
    first, second = (ask(calls, ["f", {"x": 1}], answer) for _ in range(2))
    assert first == second == {"b": 1.5, "a": [1, None, float("inf")], "c": [2, "é"]}
    assert list(second) == ["b", "a", "c"]
    assert len(calls) == 1
    ask(calls, ["f", {"x": 2}], answer)
    assert len(calls) == 2


def test_other_sources_or_libraries_have_other_answers(calls, monkeypatch):
    ask(calls, ["f"], 1)
    memo._state.cache_clear()
    monkeypatch.setattr(memo, "source_digest", lambda: "other")
    assert ask(calls, ["f"], 2) == 2
    memo._state.cache_clear()
    monkeypatch.undo()


def test_only_a_command_keeps_answers(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(memo, "_is_enabled", False)
    assert [ask(calls, ["f"], (1,)) for _ in range(2)] == [(1,), (1,)]
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_answer_and_an_unwritable_folder_cost_time_only(calls, monkeypatch, tmp_path):
    ask(calls, ["f"], [1, 2])
    (file,) = [each for each in (tmp_path / "answers").rglob("*") if each.is_file()]
    file.write_bytes(file.read_bytes()[:3])
    assert ask(calls, ["f"], [1, 2]) == [1, 2]
    assert len(calls) == 2
    file.unlink()
    os.mkfifo(file)
    assert ask(calls, ["f"], [1, 2]) == [1, 2]
    (tmp_path / "file").touch()
    monkeypatch.setenv("CTVR_CACHE", str(tmp_path / "file"))
    assert ask(calls, ["f"], [1, 2]) == [1, 2]


def test_folders_of_former_sources_are_removed(calls, tmp_path):
    for number in range(2 * memo.KEPT):
        (tmp_path / "answers" / str(number)).mkdir(parents=True)
    ask(calls, ["f"], 1)
    assert len(list((tmp_path / "answers").iterdir())) == memo.KEPT
    assert ask(calls, ["f"], 2) == 1


def test_the_shells_command_keeps_answers_and_a_call_from_python_does_not(monkeypatch):
    from ctvr.orchestrator.cli import main

    monkeypatch.setattr(memo, "_is_enabled", False)
    main.main(["streams"])
    assert not memo._is_enabled
    monkeypatch.setattr("sys.argv", ["ctvr", "streams"])
    main.main()
    assert memo._is_enabled
    assert Path(memo._folder()).parent.name == "answers"


def test_a_cached_result_about_commits_survives_other_sources(calls, monkeypatch):
    ask_of_commits = lambda: memo.remembered(["f"], lambda: calls.append(1) or 7, of_commits=True)
    assert ask_of_commits() == 7
    for number in range(memo.KEPT + 2):
        memo._state.cache_clear()
        monkeypatch.setattr(memo, "source_digest", lambda number=number: str(number))
        ask([], ["g"], number)
    assert ask_of_commits() == 7
    assert len(calls) == 1
    memo._state.cache_clear()
