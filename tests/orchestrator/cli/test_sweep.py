"""`ctvr sweep` and `ctvr rerun`: the request that the arguments produce, and the arguments that are refused."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctvr.orchestrator.cli.rerun import with_page
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.sweeps.plan import request_search
from tests.orchestrator.cli.test_main import _logging_as_before, ctvr  # noqa: F401


@pytest.fixture
def asked(monkeypatch) -> list[Any]:
    """Return the requests that commands made; nothing runs."""
    found: list[Any] = []

    def keep(request: Any, *more: Any) -> str:
        found.append((request, *more))
        return "done"

    for job in ("sweeps.sweep.sweep", "sweeps.sweep.resume", "sweeps.rerun.rerun"):
        monkeypatch.setattr(f"ctvr.orchestrator.{job}", keep)
    for command in ("sweep", "rerun"):
        monkeypatch.setattr(f"ctvr.orchestrator.cli.{command}.with_page", lambda text, *more: text)
    for check in ("sweeps.preflight.check_resumable", "tracking.server.require_records"):
        monkeypatch.setattr(f"ctvr.orchestrator.{check}", lambda *words: None)
    return found


def test_a_sweep_without_words_is_the_main_job(capsys, tmp_path, asked):
    assert ctvr(capsys, "sweep", "--runs", tmp_path)[:2] == (0, "done\n")
    ((request, execution),) = asked
    (row,), seeds = request.preset.rows, request.preset.seeds
    assert (row.method, request.stream, seeds, request.top) == ("framefusion_moe", "worlds-quick", 3, 1)
    baselines = "zero_shot:chance zero_shot clip4clip clip4clip@er_ring er_ring:share-5 er_ring upper_bound:only-final"
    controls = ("framefusion_moe:train-references", "framefusion_moe:no-cross-task")
    assert request.baselines == (*baselines.split(), *controls)
    assert request.preset.search == {}
    assert execution.runs == tmp_path


def test_every_option_of_a_sweep_reaches_the_request(capsys, tmp_path, asked):
    words = "--method lwf --stream shapes-10 --name n --trials 4 --searcher random --scheduler none --top 2 --seeds 5"
    words += " --space method.weight=1,2 --space base.lr=1e-6 --baselines lora, --preset shapes,original"
    words += " --direction v2t --task-orders 3"
    ctvr(capsys, "sweep", *words.split(), "optim.epochs=2", "search.seed=7", "--runs", tmp_path)
    ((request, _),) = asked
    assert request == request_search(
        method="lwf",
        stream="shapes-10",
        name="n",
        overrides={"optim.epochs": "2"},
        presets=("shapes", "original"),
        search={"trials": 4, "searcher": "random", "scheduler": "none", "seed": "7"},
        seeds=5,
        space=("method.weight=1,2", "base.lr=1e-6"),
        top=2,
        baselines=("lora",),
        direction="v2t",
        orders=3,
    )


def test_a_preset_that_is_a_table_sweeps_all_its_rows(capsys, tmp_path, asked):
    ctvr(capsys, "sweep", "--preset", "cvlm-table1", "--direction", "both", "--runs", tmp_path)
    ((request, _),) = asked
    assert (request.stream, request.direction, request.preset.name) == ("shapes-cvlm", "both", "cvlm-table1")
    assert request.name.startswith("cvlm-table1-shapes-cvlm-")
    assert len(request.preset.rows) == 8
    assert request.preset.search["metric"] == "stream/t2v/r1_mean"


def test_words_of_the_command_line_go_before_the_tables(capsys, tmp_path, asked):
    words = (
        "--preset ctvr-table1 --stream shapes-10 --trials 0 --seeds 1 --searcher random --rows lwf,zero_shot --name t"
    )
    ctvr(capsys, "sweep", *words.split(), "search.reduction_factor=3", "optim.epochs=1", "--runs", tmp_path)
    ((request, _),) = asked
    assert (request.name, request.stream, request.overrides) == ("t", "shapes-10", {"optim.epochs": "1"})
    assert [row.name for row in request.preset.rows] == ["zero_shot", "lwf"]  # in the table's order
    search = request.preset.search
    assert (search["trials"], search["searcher"], search["reduction_factor"], search["scheduler"]) == (
        0,
        "random",
        "3",
        "halving",
    )
    assert request.preset.seeds == 1


def test_smoke_is_one_trial_one_seed_and_one_epoch(capsys, tmp_path, asked):
    ctvr(capsys, "sweep", "--smoke", "--runs", tmp_path)
    ctvr(capsys, "sweep", "--smoke", "--preset", "ctvr-table1", "--runs", tmp_path)
    (sweep, _), (table, _) = asked
    assert (sweep.preset.search, sweep.preset.seeds, sweep.baselines) == ({"trials": 1}, 1, ("zero_shot",))
    assert (table.preset.search["trials"], table.preset.seeds) == (1, 1)
    assert sweep.overrides == table.overrides == {"optim.epochs": "1"}


def test_given_options_win_over_those_of_smoke(capsys, tmp_path, asked):
    words = ["--trials", "2", "--seeds", "2", "--baselines", "lwf", "optim.epochs=3"]
    ctvr(capsys, "sweep", "--smoke", *words, "--runs", tmp_path)
    ((sweep, _),) = asked
    assert (sweep.preset.search, sweep.preset.seeds, sweep.baselines) == ({"trials": 2}, 2, ("lwf",))
    assert sweep.overrides == {"optim.epochs": "3"}


def test_a_sweep_is_resumed_by_its_name(capsys, tmp_path, asked):
    ctvr(capsys, "sweep", "--resume", "n", "--nodes", "2", "--runs", tmp_path)
    ((name, execution),) = asked
    assert (name, execution.nodes) == ("n", 2)


def test_a_rerun_has_the_words_of_its_command(capsys, tmp_path, asked, monkeypatch):
    found = SimpleNamespace(require_sweep=lambda name: None)
    monkeypatch.setattr("ctvr.orchestrator.execution.ExecutionConfig.existing_tracker", lambda self: found)
    words = "rerun --sweep s --top 2 --seeds 4 --baselines lora,lwf:shapes --direction both --task-orders 5"
    ctvr(capsys, *words.split(), "--runs", tmp_path)
    ((sweep, _, *rest),) = asked
    assert (sweep, rest) == ("s", [2, 4, ("lora", "lwf:shapes"), "both", 5])


def test_a_table_of_the_user_is_a_file(capsys, tmp_path, asked):
    file = tmp_path / "mine.json"
    file.write_text('{"title": "Mine", "protocol": "ctvr", "stream": "shapes-5", "rows": ["lwf", "lora:shapes"]}')
    ctvr(capsys, "sweep", "--preset", file, "--runs", tmp_path)
    ((request, _),) = asked
    assert request.name.startswith("mine-shapes-5-")
    assert [(row.method, row.presets) for row in request.preset.rows] == [("lwf", ()), ("lora", ("shapes",))]


def test_a_file_after_a_method_is_a_manifest(capsys, tmp_path, asked, few):
    ctvr(capsys, "sweep", "lora", few, "--runs", tmp_path)
    ((request, _),) = asked
    assert (request.preset.rows[0].method, request.stream) == ("lora", few)


def test_sweep_ends_with_its_page_and_survives_a_failed_one(monkeypatch):
    def stop(name, execution):
        raise KeyboardInterrupt

    def refuse(name, execution):
        raise ConfigError("full.", "report")

    def fill(name, execution):
        raise OSError(errno.ENOSPC, "No space left on device", "p.html")

    execution = ExecutionConfig()
    monkeypatch.setattr("ctvr.orchestrator.jobs.report.write_report", lambda name, _: Path("/a b") / f"{name}.html")
    assert with_page("the table", "monday", execution) == "the table\nopen: file:///a%20b/monday.html#forgotten"
    full = "p.html: no space is left. Free some space and run again."
    for fail, reason in ((stop, "stopped"), (refuse, "report: full."), (fill, full)):
        monkeypatch.setattr("ctvr.orchestrator.jobs.report.write_report", fail)
        said = f"page: was not written ({reason}). To write it, run: ctvr report monday"
        assert with_page("the table", "monday", execution) == f"the table\n{said}"
