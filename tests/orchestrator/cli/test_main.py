"""The command line from the user's view: every mistake is one line on stderr with exit status 2; stdout has results."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctvr.orchestrator.cli import main as cli
from ctvr.orchestrator.errors import ConfigError, Interrupted, RunsFailed, StoreError
from tests.refusing import missing_from


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, filters = list(root.handlers), list(root.filters)
    yield
    root.handlers[:], root.filters[:] = before, filters


def ctvr(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of a command in this process."""
    try:
        status = cli.main([str(word) for word in words])
    except SystemExit as end:  # argparse's way
        status = int(end.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_all_mistakes_are_reported_with_the_corrected_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "run CLIP4Clip shapse-5 --epochs 2 lr=1e-5 optim.warmpu=0.2 seed=-1 --presett paper"
    status, out, err = ctvr(capsys, *words.split())
    lines = err.splitlines()
    assert (status, out, len(lines)) == (2, "", 8)
    assert all(line.startswith("ctvr: ") for line in lines)
    right = "ctvr run clip4clip shapes-5 optim.epochs=2 method.lr=1e-5 optim.warmup=0.2 seed=1 --preset paper"
    assert lines[-1] == f"ctvr: all corrected: {right}"


def test_method_and_stream_need_no_option(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in ("clip4clip shapes-5", "shapes-5 clip4clip", "clip4clip --stream shapes-5"):
        arguments = cli.make_parser().parse_args(["run", *words.split(), "optim.epochs=1"])
        assert (arguments.method, arguments.stream) == ("clip4clip", "shapes-5")
        assert arguments.overrides == ["optim.epochs=1"]
    arguments = cli.make_parser().parse_args(["run", "method=clip4clip", "stream=shapes-5", "seed=1"])
    assert (arguments.method, arguments.stream, arguments.overrides) == ("clip4clip", "shapes-5", ["seed=1"])
    table = cli.make_parser().parse_args(["sweep", "ctvr-table1", "shapes-10"])
    assert (table.preset, table.stream, table.method) == ("ctvr-table1", "shapes-10", None)
    plugin = cli.make_parser().parse_args(["run", "my_method:Shift", "shapes-5"])
    assert plugin.method == "my_method:Shift"


def test_ctvr_alone_shows_a_map_and_what_to_type_next(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = ctvr(capsys)
    assert (status, err, list(tmp_path.iterdir())) == (0, "", [])
    assert out.splitlines()[-1].startswith("next: ctvr demo ")
    for words in re.findall(r"ctvr ([a-z-]+)", out):
        assert ctvr(capsys, words, "--help")[0] == 0
    (tmp_path / "runs/sweeps/monday").mkdir(parents=True)
    (tmp_path / "runs/mlflow.db").touch()
    assert ctvr(capsys)[1].splitlines()[-1].startswith("next: ctvr sweep  ")
    (tmp_path / "runs/sweeps/monday/plan.json").touch()
    assert ctvr(capsys)[1].splitlines()[-1].startswith("next: ctvr sweep --resume monday  ")
    (tmp_path / "runs/tables/monday-final-1a2b3c").mkdir(parents=True)
    assert ctvr(capsys)[1].splitlines()[-1].startswith("next: ctvr report monday  ")
    assert ctvr(capsys, "--version")[1].startswith("ctvr 0.")


def test_mistake_is_reported_before_torch_and_ray_are_imported(tmp_path):
    code = """if True:
        import sys
        from ctvr.orchestrator.cli.main import main
        for words in (["--searcher", "bayes"], ["--method", "lroa"], ["--workers", "0"], ["--resume", "x"]):
            assert main(["sweep", *words]) == 2
        assert main(["cache", "ls", "--runs", "nowhere"]) == main(["rerun", "--sweep", "x", "--runs", "nowhere"]) == 2
        assert {"torch", "ray", "mlflow"}.isdisjoint(sys.modules)
        assert main(["sweep", "method.bta=1"]) == 2
        assert {"ray", "mlflow"}.isdisjoint(sys.modules)"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


WRONG = [
    (["method.lrr=1"], "method.lrr"),
    (["optim.epochs", "=", "2"], "optim.epochs=2"),
    (["optim.epochs:", "2"], "optim.epochs 2"),
    (["optim.epochs:2"], "optim.epochs:2"),
    (["optim.epochs=2epochs"], "optim.epochs=2"),
    (["optim.epochs=[2]"], "optim.epochs=2"),
    (["method.lr=\N{LEFT SINGLE QUOTATION MARK}1e-5\N{RIGHT SINGLE QUOTATION MARK}"], "method.lr=1e-5"),
    (["method.lr=inf"], "method.lr 'inf'"),
    (["optim.lr="], "optim.lr method.lr"),
    (["backbone=tiny"], "backbone"),
    (["method.lr=0,00001"], "'0,00001' method.lr=0.00001"),
    (
        ["--epochs", "two"],
        "--epochs optim.epochs 'two'",
    ),
    (["--k", "5"], "--k"),
    (["\N{EN DASH}-smoke"], "\N{EN DASH}-smoke"),
    (["optim.epochs=2 seed=3"], "optim.epochs=2 seed=3"),
    (["optim.epochs==2"], "optim.epochs=2"),
    (["optim.epochs=1e3"], "optim.epochs=1000"),
    (["optim.epochs=1,000"], "'1,000' optim.epochs=1000"),
    (["--preset", "paper", "--preset", "shapes"], "--preset 'paper' 'shapes'"),
    (["--html", "x"], "--html"),
    (["method=lwf"], "'clip4clip' 'lwf'"),
    (["optim.epochs=two"], "optim.epochs"),
    (["optim.epochs=-1"], "optim.epochs 0 -1"),
    (["optin.epochs=1"], "optin.epochs"),
    (["--preset", "papr"], "clip4clip 'papr' 'paper'"),
]


@pytest.mark.parametrize(
    ("command", "words", "values"), [*(("run", *case) for case in WRONG), *(("sweep", *case) for case in WRONG[::6])]
)
def test_a_wrong_setting_is_reported_before_anything_starts(capsys, decoded, command, words, values):
    runs, manifest = decoded, decoded / "small" / "small.json"  # nothing is written
    status, out, err = ctvr(capsys, command, "--runs", runs, "--method", "clip4clip", "--stream", manifest, *words)
    assert (status, out) == (2, "")
    assert not missing_from(err.splitlines()[-1], *values.split())
    assert not (runs / "sweeps").exists()


def test_values_of_options_in_another_notation_lead_to_the_command_that_works(capsys):
    for words, remedy in (
        (("cache", "gc", "--older-than", "3days"), "ctvr cache gc --older-than 3"),
        (("cache", "gc", "--older-than=1w"), "ctvr cache gc --older-than 7"),
        (("sweep", "--budget-hours", "90min"), "ctvr sweep --budget-hours 1.5"),
        (("sweep", "--trials", "1e1"), "ctvr sweep --trials 10"),
        (("table", "shapes-5", "--split", "TEST"), "ctvr table shapes-5 --split test"),
    ):
        status, _, err = ctvr(capsys, *words)
        assert (status, err.count("\n")) == (2, 1)
        assert err.endswith(f" Run: {remedy}\n")


def test_several_seeds_of_a_run_do_not_lead_to_a_sweep_that_refuses_them(capsys, manifest, runs):
    _, _, err = ctvr(capsys, "run", "--runs", runs, "clip4clip", manifest, "seed=1,2,3")
    assert err.startswith("ctvr: seed: ")
    assert "(got '1,2,3')" in err
    assert "ctvr sweep" not in err


def test_a_folder_that_cannot_be_written_is_one_line(capsys, tmp_path):
    (tmp_path / "file").touch()
    status, out, err = ctvr(capsys, "run", "--runs", tmp_path / "file" / "runs", "--method", "lora", "--stream", "x")
    assert (status, out) == (2, "")
    assert str(tmp_path / "file") in err
    assert len(err.splitlines()) == 1


def test_a_tracking_server_that_is_down_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for words in (["table", "--stream", "x"], ["rerun", "--sweep", "x"], ["run", "--method", "lora", "--stream", "x"]):
        status, out, err = ctvr(capsys, *words, "--runs", tmp_path)
        assert (status, out) == (2, "")
        assert "tracking http://127.0.0.1:9: " in err
        assert len(err.splitlines()) == 1


def test_a_number_in_the_environment_is_checked_by_its_name(capsys, monkeypatch):
    monkeypatch.setenv("CTVR_NODES", "two")
    status, _, err = ctvr(capsys, "methods")
    assert status == 2
    assert "CTVR_NODES='two'" in err


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("a: is wrong."), 2, "ctvr: a: is wrong."),
        (
            PermissionError(13, "Permission denied", "/x"),
            2,
            "ctvr: /x: access is not permitted. Change its owner or mode, or choose another folder.",
        ),
        (
            OSError(28, "No space left on device", "/x"),
            2,
            "ctvr: /x: no space is left. Free some space and run again.",
        ),
        (RunsFailed("2 runs failed."), 1, "ctvr: 2 runs failed."),
        (StoreError("/x: disk full, 3 bytes needed."), 1, "ctvr: /x: disk full, 3 bytes needed."),
        (Interrupted("Go on with: x"), 130, "ctvr: Go on with: x"),
        (
            KeyboardInterrupt(),
            130,
            "ctvr: stopped.",
        ),
    ],
)
def test_every_end_has_its_exit_status(capsys, monkeypatch, error, status, line):
    def fail(name: str) -> str:
        raise error

    monkeypatch.setattr("ctvr.orchestrator.sweeps.search_spaces.method_text", fail)
    assert ctvr(capsys, "methods", "lora") == (status, "", f"{line}\n")


@pytest.mark.parametrize(
    ("text", "encoding", "values"),
    [
        ("a.mp4\n<p>film\udcff.mp4</p>\nb", "utf-8", [r"film\udcff.mp4"]),
        ("é.mp4", "ascii", ["é.mp4", "ascii"]),
    ],
)
def test_a_text_that_cannot_be_encoded_is_quoted_where_it_fails(capsys, monkeypatch, text, encoding, values):
    monkeypatch.setattr("ctvr.orchestrator.sweeps.search_spaces.method_text", lambda name: str(text.encode(encoding)))
    status, out, err = ctvr(capsys, "methods", "lora")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert all(value in err for value in values)
    assert "PYTHONUTF8" not in err


def test_no_control_character_of_a_foreign_text_reaches_the_terminal(capsys, monkeypatch):
    def told(name: str) -> str:
        logging.getLogger("ctvr.x").warning("\x1b]52;c;x\x07")
        return "a\tb\n\x1b[2J\u202e\x9b\udcff"

    monkeypatch.setattr("ctvr.orchestrator.sweeps.search_spaces.method_text", told)
    _, out, err = ctvr(capsys, "methods", "lora")
    assert out == "a\tb\n\\x1b[2J\\u202e\\x9b\\udcff\n"
    assert "\x1b" not in err


def test_an_error_of_the_program_is_not_hidden(monkeypatch):
    def fail(name: str) -> str:
        raise RuntimeError("a bug")

    monkeypatch.setattr("ctvr.orchestrator.sweeps.search_spaces.method_text", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["methods", "lora"])


def test_results_alone_are_on_stdout(capsys, manifest, runs):
    status, out, err = ctvr(
        capsys, "run", "--runs", runs, "--method", "zero_shot", "--stream", manifest, "--fresh", "optim.epochs=1"
    )
    assert status == 0
    assert out.startswith("zero_shot on small, test videos\n")
    assert "task 3/3" in err
    status, out, err = ctvr(capsys, "table", "--runs", runs, "--stream", "small")
    assert (status, err) == (0, "")
    assert "\nzero_shot " in out


def test_a_reader_that_has_had_enough_ends_a_command_in_order():
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from ctvr.orchestrator.cli.main import main; sys.exit(main([]))"
    ended = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_loop_of_links_is_reported_in_one_line(tmp_path, capsys):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for words in (["runs"], ["table", "s"], ["cache", "ls"]):
        assert cli.main([*words, "--runs", str(tmp_path / "loop")]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
