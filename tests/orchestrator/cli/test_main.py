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


MISTAKES = [
    (
        ["run", "clip4clip", "shapes-5", "optim.epochs=2", "optim.Epochs=3"],
        "no such setting, and optim.epochs, probably meant, is also given ('2' and '3'). Keep one of them.",
    ),
    (
        ["run", "clip4clip", "shapes-5", "epochs=2", "optim.epochs=2"],
        "Keep one of them. Write: ctvr run clip4clip shapes-5 optim.epochs=2",
    ),
    (
        ["run", "clip4clip", "shapes-5", "backbone.name=openai/clip-vit-base-patch32"],
        "Write: ctvr run clip4clip shapes-5 backbone.name=ViT-B-32-quickgelu",
    ),
    (
        ["sweep", "clip4clip", "shapes-5", "backbone.name=vit_b_32"],
        "Write: ctvr sweep clip4clip shapes-5 backbone.name=ViT-B-32",
    ),
    (["run", "clip4clip:paper", "shapes-5"], "a row of a table. Write: ctvr run clip4clip --preset paper shapes-5"),
    (["run", ":Shift", "shapes-5"], "no method called ':Shift'. A class in a file is written MODULE:CLASS. All: `ctvr"),
    (
        ["run", "notmethod:", "shapes-5"],
        "no method called 'notmethod:'. A class in a file is written MODULE:CLASS. All",
    ),
    (
        ["run", "clip4clip:", "shapes-5"],
        "Did you mean clip4clip? All: `ctvr methods`. Write: ctvr run clip4clip shapes-5",
    ),
    (
        ["run", "clip4clip", "shapes-5", "--gpus", "2"],
        "CUDA_VISIBLE_DEVICES chooses it. Omit it. Write: ctvr run clip4",
    ),
    (
        ["run", "clip4clip", "shapes-5", "--output_dir", "o"],
        "no such option. Write: ctvr run clip4clip shapes-5 --runs o",
    ),
    (
        ["run", "clip4clip", "shapes-5", "--learning_rate=1"],
        "not an option. Write: ctvr run clip4clip shapes-5 method.lr=1",
    ),
    (["run", "clip4clip", "shapes-5", "--fp16"], "not an option. Write: ctvr run clip4clip shapes-5 precision=bf16"),
    (["cache", "ls", "--store", "."], "--store .: is not a store. Give the store of earlier runs."),
    (
        ["run", "clip4clip", "tiny.yaml"],
        "stream: tiny.yaml is not a manifest. If it is a file of settings, write --config",
    ),
    (["cache", "gc", "--older-than", "nan"], "is not a number of days (got 'nan'). Write --older-than 30."),
    (["cache", "gc", "--older-than", "3", "--losers", "x"], "--losers: cannot be combined with --older-than. Omit one"),
    (["ui", "5001"], "'5001': is a port. Write: ctvr ui --port 5001"),
    (["ui", "--port=5001", "5002"], "'5002': is one argument too many. Omit it. Write: ctvr ui --port=5001"),
    (["report", "mine", "mine.html"], "'mine.html': is a page. Write: ctvr report mine --html mine.html"),
    (["search", "a red box", "clip4clip"], "Write: ctvr search 'a red box' --model clip4clip"),
    (["search", "red", "--model", "x", "--top-k", "5"], "no such option. Write: ctvr search red --model x -k 5"),
    (["--runs", "other", "table", "shapes-5"], "must come after the command. Write: ctvr table shapes-5 --runs other"),
    (["help", "run"], "help: no such command. Write: ctvr run --help"),
    (["compare", "A", "B"], "compare: no such command. Write: ctvr explain A B"),
    (["table", "shapes-5", "--latex"], "is always written as .tex, too. Omit it. Write: ctvr table shapes-5"),
    (["run", "clip4clip", "shapes-5", "-c", "x.yaml"], "Write: ctvr run clip4clip shapes-5 --config x.yaml"),
    (
        ["run", "clip4clip", "shapes-5", "--preset", "paper,shaps"],
        "Write: ctvr run clip4clip shapes-5 --preset paper,shapes",
    ),
    (["run", "lwf", "shapes-5", "method.base=clip4clp"], "method.base: no method called 'clip4clp'. Did you mean"),
    (["doctor", "gpu"], "'gpu': is an option. Write: ctvr doctor --gpu"),
    (["doctor", "shapes-5"], "'shapes-5': is a stream. Write: ctvr doctor --stream shapes-5"),
    (["runs", "shapes-5"], "shapes-5: no such action of runs. Write: ctvr runs --stream shapes-5"),
    (["runs", "--split", "val"], "--split: is an option of ctvr table, not of this command. Omit it."),
    (["report", "shapes-5", "--html", ""], "--html: its value is empty. Write --html FILE, or omit it."),
    (["new", "method", "idée"], "new method 'idée': is not a module name. Use lower-case letters"),
    (["new", "method", "my_idea", "--into", "nowhere"], "--into nowhere: is not a folder. Create it first"),
    (["streams", "check", "shapes-5", "--videos", "nowhere"], "--videos: nowhere is not a folder."),
    (["check-method"], "check-method: NAME is missing. Write: ctvr check-method NAME"),
    (["swep"], "swep: no such command. Write: ctvr sweep"),
    (["sweep", "--trails", "3"], "--trails: no such option. Write: ctvr sweep --trials 3"),
    (["sweep", "--trials", "x"], "--trials: is not a whole number (got 'x'). Write --trials 3."),
    (["sweep", "--trials"], "--trials: has no value. Write --trials 3."),
    (["sweep", "--smoke=yes"], "--smoke: takes no value (got 'yes'). Write: ctvr sweep --smoke"),
    (["sweep", "optim.epochs"], "optim.epochs: has no value. Write optim.epochs=VALUE."),
    (["sweep", "optim.epochs", "2"], "optim.epochs: has no value. Write: ctvr sweep optim.epochs=2"),
    (["run", "clip4clip", "shapes-5", "--epochs", "2"], "Write: ctvr run clip4clip shapes-5 optim.epochs=2"),
    (["run", "clip4clip", "shapes-5", "--lr=1e-5"], "Write: ctvr run clip4clip shapes-5 method.lr=1e-5"),
    (["run", "clip4clip", "shapes-5", "lr=1e-5"], "Write: ctvr run clip4clip shapes-5 method.lr=1e-5"),
    (["run", "CLIP4Clip", "shapes-5"], "Did you mean clip4clip? All: `ctvr methods`. Write: ctvr run clip4clip"),
    (["run", "clip4clip", "shapes-5", "shapes-10"], "'shapes-10': is a second stream after shapes-5"),
    (
        ["run", "clip4clip", "shapes-5", "optim.epochs=2,4"],
        "takes one value, not 2 (got '2,4'). Run each: ctvr sweep clip4clip shapes-5 --vary optim.epochs=2,4",
    ),
    (["run", "clip4clip", "shapes-5", "seed=-1"], "seed must be a whole number from 0 to 4294967295, got -1"),
    (["sweep", "--space", "method.beta=0.1,0.2", "method.beta=0.3"], "--space method.beta: is given twice"),
    (["report", "x", "--html", "/nosuch/x.html"], "--runs: runs has no runs"),
    (["reproduce", "ctvr-table1"], "reproduce: 'ctvr-table1' is a table's preset. Write: ctvr reproduce "),
    (["sweep", "optim.epochs=1", "optim.epochs=2"], "optim.epochs: given twice"),
    (["sweep", "--method", "clip4clpi"], "method: no method called 'clip4clpi'. Did you mean clip4clip?"),
    (
        ["sweep", "--trials", "0"],
        "search: trials must be >= 1, got 0. Write --trials 8, or train without a search: ctvr run METHOD STREAM.",
    ),
    (["sweep", "--searcher", "bayes"], "searcher: 'bayes' is none of tpe, random, grid"),
    (["sweep", "--workers", "0"], "--workers: must be >= 1, got 0"),
    (["sweep", "--gpus-per-trial", "-1"], "--gpus-per-trial: must be >= 0"),
    (
        ["sweep", "--expect-sources", "0123456789ab"],
        "--expect-sources 0123456789ab: this machine has other sources (",
    ),
    (["sweep", "--storage", "s3://key:hidden@bucket/x"], "--storage: contains a password. Remove it"),
    (["sweep", "--name", "a/b"], "for example a-b. Write: ctvr sweep --name a-b"),
    (["sweep", "--resume", "monday"], "sweep: 'monday' does not exist. Known: none yet."),
    (["sweep", "--resume", "monday", "optim.epochs=2"], "resumes with the settings of the first command"),
    (["rerun", "--sweep", "monday"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["rerun"], "rerun: the name of the sweep is missing. Write: ctvr rerun NAME"),
    (["table"], "table: give the name of a sweep or a stream. Write for example: ctvr table shapes-5"),
    (["table", "a,", "b"], "a, b: is a list with a space. Write: ctvr table a,b"),
    (["runs", "7619a965"], "7619a965: no such action of runs. Write: ctvr runs show 7619a965"),
    (["table", "--sweep", "monday"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["search", "a square", "--model", "best-shapes-5"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["report", "shapes-5"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["run", "--config", "none.yaml"], "--config none.yaml: cannot be read (No such file or directory)"),
    (["schema", "clip4clpi"], "method: no method called 'clip4clpi'"),
    (["run", "--method", "clip4clip", "--stream", "shapse-5"], "shapse-5"),
    (
        ["run", "--method", "clip4clip"],
        "run: the stream is missing; `ctvr streams` lists them. Write for example: ctvr run clip4clip shapes-5",
    ),
    (["methods", "clip4clpi"], "no method called 'clip4clpi'. Did you mean clip4clip?"),
    (["streams", "check", "nothing.json"], "nothing.json"),
    (["runs", "list"], "list: no such action of runs. Write: ctvr runs"),
    (["runs", "delete", "x"], "delete: no such action of runs. Write: ctvr runs rm x"),
    (["cache", "biuld"], "biuld: no such action of cache. Write: ctvr cache build"),
    (["ui", "--port", "99999"], "--port 99999"),
    (["sweep", "--baselines", "lora,clip4clpi"], "no method called 'clip4clpi'. Did you mean clip4clip?"),
    (["sweep", "--confirm", "-1"], "search: confirm must be >= 0, got -1. Write --confirm 0 to confirm nothing"),
    (["sweep", "--scheduler", "halvin"], "scheduler: 'halvin' is none of halving, none. Did you mean 'halving'?"),
    (["sweep", "--scheduler", "asha"], "scheduler: asha was removed. Write halving or none."),
    (["sweep", "--space", "method.beta"], "--space: 'method.beta' is not name=VALUE,VALUE"),
    (["sweep", "--space", "bta=1,2"], "bta: no such setting. Write method.beta=1."),
    (["sweep", "--space", "method.beta=a,b"], "method.beta: is not a number (got 'a'). Write method.beta="),
    (["sweep", "--space", "method.beta=0.1,7"], "beta must be in [0, 1], got 7"),
    (["sweep", "--space", "seed=1,2"], "seed: not applicable"),
    (["sweep", "--baselines", "lwf:nope"], "preset: lwf has no preset called 'nope'"),
    (["sweep", "--budget-hours", "-1"], "--budget-hours: must be > 0 and < 10000, got -1"),
    (["sweep", "--max-nodes", "1", "--nodes", "3"], "--max-nodes: must be >= --nodes, got 1 and 3"),
    (["sweep", "--worker-timeout-hours", "0"], "--worker-timeout-hours: must be > 0"),
    (["sweep", "--top", "0"], "--top: must be >= 1 and --seeds >= 0, got 0"),
    (["run", "--config", "."], "--config .: cannot be read (it is a folder)"),
    (["run", "--method", "no.such:Thing", "--stream", "shapes-5"], "no.such cannot be imported"),
    (["methods", "clip4clip", "--cost"], "methods: --cost shows all methods"),
    (["methods", "--tasks", "100"], "methods: --tasks requires --cost. Write ctvr methods --cost --tasks 100."),
    (
        ["cache", "ls", "--runs", "nowhere"],
        "nowhere/store: does not exist. Give the store of earlier runs",
    ),
    (["cache", "gc", "--store", "nope", "--older-than", "3"], "--store nope: does not exist"),
    (["cache", "verify"], "runs/store: does not exist"),
    (["explain", "abcd"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["sync", "--runs", "nowhere"], "--runs nowhere: has no runs. Give the folder of earlier runs."),
    (["attach", "monday"], "attach: no sweep 'monday' was submitted to this machine"),
    (
        ["streams", "import", "csv", "none.csv"],
        "streams import csv: --videos is missing. Write: ctvr streams import",
    ),
    (["streams", "import", "msrvtt", "a.pkl"], "'a.pkl' has no name before it. Write: ctvr streams import msrvtt"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_status_2(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = ctvr(capsys, *words)
    lines = [line for line in err.splitlines() if not line.startswith("doctor: ")]
    assert (status, out) == (2, "")
    assert len(lines) == 1, err
    assert message in lines[0]
    assert lines[0].startswith("ctvr")
    assert not list(tmp_path.iterdir()), "nothing is made"


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
    assert out.splitlines()[-1].startswith("next: ctvr run zero_shot shapes-5 ")
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
    (["method.lrr=1"], "method.lrr: no such setting. Write: ctvr "),
    (["optim.epochs", "=", "2"], " optim.epochs=2"),
    (["optim.epochs:", "2"], "optim.epochs: 2: is a setting in parts. Write: ctvr "),
    (["optim.epochs:2"], "optim.epochs:2: is a setting with a colon. Write: ctvr "),
    (["optim.epochs=2epochs"], " optim.epochs=2"),
    (["optim.epochs=[2]"], " optim.epochs=2"),
    (["method.lr=\N{LEFT SINGLE QUOTATION MARK}1e-5\N{RIGHT SINGLE QUOTATION MARK}"], " method.lr=1e-5"),
    (["method.lr=inf"], "method.lr: 'inf' is not a finite number. Give a number, or omit the setting."),
    (["optim.lr="], "optim.lr: no such setting, and method.lr: is not a number (got '')"),
    (["backbone=tiny"], "backbone: no such setting. Write: ctvr "),
    (["method.lr=0,00001"], "(got '0,00001'). With a decimal point: method.lr=0.00001. Run each: "),
    (
        ["--epochs", "two"],
        "--epochs: is a setting, not an option, and optim.epochs: is not a whole number (got 'two')",
    ),
    (["--k", "5"], "--k: no such option."),
    (["\N{EN DASH}-smoke"], "\N{EN DASH}-smoke: begins with a long dash."),
    (["optim.epochs=2 seed=3"], " optim.epochs=2 seed=3"),
    (["optim.epochs==2"], " optim.epochs=2"),
    (["optim.epochs=1e3"], " optim.epochs=1000"),
    (["optim.epochs=1,000"], "(got '1,000'). As one number: optim.epochs=1000. Run each: "),
    (["--preset", "paper", "--preset", "shapes"], "--preset: given twice, as 'paper' and 'shapes'. Keep one of"),
    (["--html", "x"], "--html: is an option of ctvr search, ctvr report, not of this command. Omit it."),
    (["method=lwf"], "method: given twice, as 'clip4clip' and 'lwf'. Keep one of them."),
    (["optim.epochs=two"], "optim.epochs: "),
    (["optim.epochs=-1"], "optim.epochs must be >= 0, got -1"),
    (["optin.epochs=1"], "optin.epochs: no such setting. Write: ctvr "),
    (["--preset", "papr"], "clip4clip has no preset called 'papr'. Did you mean 'paper'"),
]


@pytest.mark.parametrize(
    ("command", "words", "message"), [*(("run", *case) for case in WRONG), *(("sweep", *case) for case in WRONG[::6])]
)
def test_a_wrong_setting_is_reported_before_anything_starts(capsys, decoded, command, words, message):
    runs, manifest = decoded, decoded / "small" / "small.json"  # nothing is written
    status, out, err = ctvr(capsys, command, "--runs", runs, "--method", "clip4clip", "--stream", manifest, *words)
    assert (status, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert not (runs / "sweeps").exists()


def test_values_of_options_in_another_notation_lead_to_the_command_that_works(capsys):
    for words, remedy in (
        (("cache", "gc", "--older-than", "3days"), "ctvr cache gc --older-than 3"),
        (("cache", "gc", "--older-than=1w"), "ctvr cache gc --older-than 7"),
        (("sweep", "--budget-hours", "90min"), "ctvr sweep --budget-hours 1.5"),
        (("sweep", "--trials", "1e1"), "ctvr sweep --trials 10"),
        (("table", "shapes-5", "--split", "TEST"), "ctvr table shapes-5 --split test"),
        (("serch", "a cat"), "ctvr search 'a cat'"),
    ):
        status, _, err = ctvr(capsys, *words)
        assert (status, err.count("\n")) == (2, 1)
        assert err.endswith(f" Write: {remedy}\n")


def test_several_seeds_of_a_run_do_not_lead_to_a_sweep_that_refuses_them(capsys, manifest, runs):
    _, _, err = ctvr(capsys, "run", "--runs", runs, "clip4clip", manifest, "seed=1,2,3")
    assert err == "ctvr: seed: takes one value, not 3 (got '1,2,3'). Give one in each run.\n"


def test_a_folder_that_cannot_be_written_is_one_line(capsys, tmp_path):
    (tmp_path / "file").touch()
    status, out, err = ctvr(capsys, "run", "--runs", tmp_path / "file" / "runs", "--method", "lora", "--stream", "x")
    assert (status, out) == (2, "")
    assert "cannot be written" in err
    assert len(err.splitlines()) == 1


def test_a_tracking_server_that_is_down_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for words in (["table", "--stream", "x"], ["rerun", "--sweep", "x"], ["run", "--method", "lora", "--stream", "x"]):
        status, out, err = ctvr(capsys, *words, "--runs", tmp_path)
        assert (status, out) == (2, "")
        assert "tracking http://127.0.0.1:9: connection refused" in err
        assert len(err.splitlines()) == 1


def test_a_number_in_the_environment_is_checked_by_its_name(capsys, monkeypatch):
    monkeypatch.setenv("CTVR_NODES", "two")
    status, _, err = ctvr(capsys, "methods")
    assert status == 2
    assert "CTVR_NODES='two' in the environment is not a whole number" in err


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
            "ctvr: stopped. Finished tasks are kept; the same command resumes from them.",
        ),
    ],
)
def test_every_end_has_its_exit_status(capsys, monkeypatch, error, status, line):
    def fail(name: str) -> str:
        raise error

    monkeypatch.setattr("ctvr.orchestrator.sweeps.search_spaces.method_text", fail)
    assert ctvr(capsys, "methods", "lora") == (status, "", f"{line}\n")


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
