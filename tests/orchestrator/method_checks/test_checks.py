"""`ctvr methods new` and `ctvr methods check`: the written method passes and runs, and each planted fault is caught."""

import dataclasses
import importlib
from pathlib import Path

import pytest

from ctvr import methods
from ctvr.orchestrator.catalog.method_templates import KINDS
from ctvr.orchestrator.catalog.new_method import new_method
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.errors import ContractViolation
from ctvr.orchestrator.jobs.check_method import CHECKS, check_method
from ctvr.orchestrator.method_checks.setting_sensitivity import SettingProbe, check_settings_matter
from ctvr.orchestrator.method_checks.subject import Subject
from ctvr.orchestrator.sweeps.preflight import check_methods
from ctvr.orchestrator.sweeps.search_spaces import search_space
from ctvr.orchestrator.tables.footnotes import trials_of
from ctvr.orchestrator.tables.presets import split_row
from ctvr.orchestrator.tracking.run_record import RunRecord
from tests.refusing import refuses


def place(cls: str) -> str:
    name = f"tests.orchestrator.method_checks.planted:{cls}"
    methods.trust([name])
    return name


@pytest.mark.parametrize(
    ("cls", "check", "message"),
    [
        pytest.param("DeadSetting", "settings", r"no other value of method\.num_heads changes", marks=pytest.mark.slow),
        pytest.param(
            "IdleUnderOne",
            "settings",
            r"no other value of method\.size under method\.mode=last changes",
            marks=pytest.mark.slow,
        ),
        (
            "Counts",
            "resume",
            "resumed after task 1, features differ: some state is neither a parameter nor",
        ),
        ("ClassMemory", "leaks", "a variable of a class or a module"),
        ("Peeks", "leaks", "pair 1000000 is read from the source of pairs before any task has shown it"),
        ("KnowsOrder", "leaks", "the order of the videos"),
        ("KnowsTask", "leaks", "depend on the index of a task"),
        ("LeavesATrace", "leaks", "an evaluation changes a parameter or a buffer"),
        ("WritesIntoTheStore", "leaks", "task 2 writes into the stored features of an earlier task's videos"),
        ("WritesIntoTheBatch", "losses", r"writes into the batch \(frames\)"),
        ("MixesRows", "rows", "features of a video depend on the others of its batch"),
        ("NotFrozen", "frozen", "text_is_frozen = True, but task 1 changes"),
        ("VideosNotFrozen", "frozen", "videos_are_frozen = True, but task 1 changes"),
    ],
)
def test_a_planted_fault_is_caught(cls, check, message):
    with pytest.raises(ContractViolation, match=message):
        CHECKS[check][0](Subject.of(place(cls)))


@pytest.mark.slow
def test_a_number_is_tried_where_it_counts_and_an_unused_one_is_named():
    assert check_settings_matter(Subject.of(place("Switched"))) == (
        "lr, weight, size, places, sizes; no other value was accepted for: blocks"
    )


def test_setting_without_effect_is_tried_with_a_large_value():
    """StructAlign's classes must be at least as many as the stream's categories, and are unset by default."""
    subject = Subject.of("structalign")
    assert SettingProbe(subject, "etf_num_classes", {}).probe() == ("counts", {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lora", "dgl", "er_ring"])
def test_a_method_of_ours_conforms_with_every_number(name):
    said = check_method(name)
    assert [line.split()[1] for line in said] == ["ok"] * len(CHECKS)
    assert "no other value was accepted" not in said[list(CHECKS).index("settings")]


def test_what_is_wrong_is_one_line_of_each_check_and_exit_status_1(capsys):
    assert main(["methods", "check", place("Crashes")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("Crashes: 6 of 7 checks failed")
    assert [line.split()[0] for line in lines[1:]] == [*CHECKS, "opens"]
    assert lines[1].split(maxsplit=1)[1].startswith("wrong  RuntimeError: ")
    assert "(planted.py:" in lines[1]


def test_a_new_method_conforms_and_so_does_its_test(tmp_path, monkeypatch, capsys):
    assert main(["methods", "new", "small_idea", "--into", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "small_idea"
    assert "ctvr methods check small_idea:SmallIdea" in said
    assert sorted(file.name for file in folder.iterdir()) == [
        "pyproject.toml",
        "small_idea.py",
        "small_idea_space.py",
        "test_small_idea.py",
    ]
    monkeypatch.syspath_prepend(str(folder))
    assert main(["methods", "check", "small_idea:SmallIdea"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [[check, "ok"] for check in CHECKS]
    assert lines[-1].split()[0] == "opens"
    assert "(lr, weight)" in lines[list(CHECKS).index("settings")]
    test = importlib.import_module("test_small_idea")
    test.test_the_untrained_method_is_zero_shot_clip()
    check_methods(["small_idea:SmallIdea", "clip4clip"])  # as `ctvr run`, and with a sweep's winner
    assert split_row("small_idea:SmallIdea") == ("small_idea:SmallIdea", ())
    assert split_row("lwf:original,no-x") == ("lwf", ("original", "no-x"))
    run = RunRecord(
        "", "", {}, {}, {"ctvr.method": "small_idea:SmallIdea", "ctvr.searched": "small_idea:SmallIdea:8"}, "", ""
    )
    assert trials_of(run) == 8
    assert sorted(search_space("small_idea:SmallIdea")[1]) == ["method.lr", "method.weight"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "retriever"])
def test_a_new_method_of_each_kind_conforms_and_so_do_its_test_and_space(kind, tmp_path, monkeypatch, capsys):
    name = f"{kind}_idea"
    assert main(["methods", "new", name, f"--{kind}", "--into", str(tmp_path)]) == 0
    folder = tmp_path / name
    monkeypatch.syspath_prepend(str(folder))
    cls = f"{kind.title()}Idea"
    assert f"ctvr methods check {name}:{cls}" in capsys.readouterr().out
    assert "from ctvr.methods" not in (folder / f"{name}.py").read_text()
    assert main(["methods", "check", f"{name}:{cls}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [[check, "ok"] for check in CHECKS]
    test = importlib.import_module(f"test_{name}")
    for found in set(vars(test)) - {"test_it_conforms"}:
        if found.startswith("test_"):
            getattr(test, found)()
    settings = {each.removeprefix("method.") for each in search_space(f"{name}:{cls}")[1]}
    assert settings == {field.name for field in dataclasses.fields(getattr(test, f"{cls}Config"))} - {"base"}


def test_a_new_method_is_of_one_kind(capsys):
    assert main(["methods", "new", "two_kinds", "--strategy", "--analytic"]) != 0
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (lambda: new_method("my-idea"), "'my-idea'"),
        (lambda: new_method("torch"), "'torch'"),
        (lambda: new_method("idea", Path("/proc")), "/proc/idea"),
        (lambda: new_method("lwf"), "lwf"),
        (lambda: check_method("lwff"), "'lwff'"),
        (
            lambda: check_method("image_si"),
            "image_si",
        ),
        (lambda: check_method("lwf", {"method.weigth": 2}), "method.weigth method.weight=2"),
    ],
)
def test_a_mistake_is_one_line(call, values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refuses(*values.split()):
        call()
    assert not list(tmp_path.iterdir())
    assert main(["methods", "check", "lwf", "optim.epochs=1"]) == 2
