"""A foreign file names a class: no command imports it, one line reports it, and --trust allows it."""

import importlib.util
import json
import logging
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

import ctvr
from ctvr import methods
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.errors import UntrustedCode
from ctvr.orchestrator.on_ray.plan import TrialPlan, write_plan
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps.plan import request_search
from ctvr.orchestrator.tracking.server import default_uri
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.refusing import missing_from, refuses

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "text_shift" / "text_shift.py"
EVIL = "evil:TextShift"
REFUSED = f"the class {EVIL} is not named by this command, so its code is not run. If you trust that code, add --trust "


@pytest.fixture(scope="module")
def theirs(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder from elsewhere: evil.py, and a run, model, stream, table and plan that name `evil:TextShift`."""
    root = tmp_path_factory.mktemp("theirs")
    runs = shutil.copytree(learned, root / "runs")
    tracker = Tracker(default_uri(runs), runs)
    mine = next(run for run in tracker.find_runs() if run.settings["method"] == "framefusion_moe")
    shutil.copytree(tracker.download(mine.run_id, "model"), root / "model")
    tracker.open_sweep("u", "small", {"method": "clip4clip"})
    tracker.set_tags(mine.run_id, {"ctvr.sweep": "u"})
    with closing(sqlite3.connect(runs / "mlflow.db")) as database, database:
        database.execute("UPDATE params SET value = ? WHERE key = 'method' AND value = 'framefusion_moe'", [EVIL])
        database.execute("UPDATE tags SET value = ? WHERE key = 'ctvr.method' AND value = 'framefusion_moe'", [EVIL])
    saved = json.loads((root / "model" / "model.json").read_text())
    saved["settings"] = {k: v for k, v in saved["settings"].items() if not k.startswith("method.")} | {"method": EVIL}
    (root / "model" / "model.json").write_text(json.dumps(saved))
    stream = json.loads((learned / "small" / "small.json").read_text())
    stream |= {"videos": str(learned / "small" / "videos")}
    stream["settings"] |= {"method.base": EVIL, "optim.epochs": 1}
    (root / "base.json").write_text(json.dumps(stream))
    table = {"title": "T", "protocol": "any", "stream": "small", "rows": [{"name": EVIL, "searched": False}]}
    (root / "table.json").write_text(json.dumps(table))
    for name, method in (("plan", EVIL), ("trials", "clip4clip")):
        settings = {"method": EVIL, "stream": str(root / "base.json")}
        plan = TrialPlan(name, str(runs), str(root / "s"), default_uri(runs), None, str(root), settings=settings)
        request = asdict(request_search(method, str(root / "base.json"), name, {}))
        write_plan(plan, runs / "sweeps" / name, request=request, where={})
    marked = f"import os\n\nopen({str(root / 'ran')!r}, 'w').close()\n"
    (root / "evil.py").write_text(EXAMPLE.read_text().replace("import os\n", marked))
    return root


@pytest.fixture(autouse=True)
def _untrusting(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trust nothing at first; forget the classes that a test has trusted and loaded."""
    root = logging.getLogger()
    before = list(root.handlers), list(root.filters), list(sys.meta_path)
    monkeypatch.setattr(methods, "_trusted", set())
    monkeypatch.chdir(theirs)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in {"", "."}])  # as `ctvr` starts
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, methods._MethodFolders)]
    yield
    root.handlers[:], root.filters[:], sys.meta_path[:] = before
    sys.modules.pop("evil", None)
    (theirs / "ran").unlink(missing_ok=True)


def run_of(theirs: Path, method: str) -> str:
    tracker = Tracker(default_uri(theirs / "runs"), theirs / "runs")
    return next(run.run_id for run in tracker.find_runs() if run.settings.get("method") == method)


COMMANDS = {
    "run": ("run --method lump --stream base.json", "base.json: "),
    "sweep": ("sweep --method lump --baselines lump --stream base.json", "base.json: "),
    "features": ("cache build --stream base.json --features method=lump", "base.json: "),
    "model in a folder": ("search x --model model", "model/model.json: "),
    "model here": ("search x --model .", "model.json: "),
    "run id": ("search x --model RUN", "run framefusion_moe-seed0"),
    "export": ("export hf out --model RUN", "run framefusion_moe-seed0"),
    "rerun": ("rerun --sweep u --local-cpus 2", "run framefusion_moe-seed0"),
    "resume": ("sweep --resume plan", "sweep plan, plan.json: "),
    "table": ("sweep --preset table.json --stream runs/small/small.json", f"table table.json: row {EVIL}: "),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_names_the_untrusted_class_in_one_line(case, theirs, capsys, monkeypatch):
    words, place = COMMANDS[case]
    if case == "model here":
        monkeypatch.chdir(theirs / "model")
        shutil.copy(theirs / "evil.py", theirs / "model")
    runs = [] if "model" in case else ["--runs", str(theirs / "runs")]
    status = main([*words.replace("RUN", run_of(theirs, EVIL)).split(), *runs])
    said = capsys.readouterr()
    line = said.err.strip().splitlines()[-1]
    assert (status, said.out) == (2, "")
    assert place in line
    assert not missing_from(line, "--trust", EVIL)
    assert "evil" not in sys.modules
    assert not (theirs / "ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        "table --stream small",
        "runs sync --rebuild",
        "cache",
        "streams check base.json",
        "methods",
        "streams",
        "report small",  # the rows of other methods
        "search x --model best-small",  # the best of the runs that can be loaded
    ],
)
def test_a_command_that_needs_no_class_does_its_work_without_it(words, theirs, capsys):
    place = [] if words in ("methods", "streams check base.json") else ["--runs", str(theirs / "runs")]
    assert main([*words.split(), *place]) == 0, capsys.readouterr().err
    assert not (theirs / "ran").exists()


def test_explain_says_that_the_class_is_not_loaded(theirs, capsys):
    tracker = Tracker(default_uri(theirs / "runs"), theirs / "runs")
    key = next(run.tags["ctvr.result"] for run in tracker.find_runs() if run.settings.get("method") == EVIL)
    assert main(["runs", "explain", key[:16], "--runs", str(theirs / "runs")]) == 0
    assert not missing_from(capsys.readouterr().out, "--trust", EVIL)
    assert not (theirs / "ran").exists()


def test_plan_trials_of_another_class_are_refused(theirs):
    """A worker trusts the classes that the driver's user has named; a plan.json cannot add any."""
    file = theirs / "runs" / "sweeps" / "trials" / "plan.json"
    kept = json.loads(file.read_text())
    kept["plan"]["trusted"] = [EVIL]
    file.write_text(json.dumps(kept))
    from ctvr.orchestrator.learning.training.distributed import Workers
    from ctvr.orchestrator.learning.training.interruption import Interruption
    from ctvr.orchestrator.on_ray.plan import read_plan
    from ctvr.orchestrator.on_ray.worker import TrialWork, run_trial

    plan, _ = read_plan(file.parent, "trials")
    with pytest.raises(UntrustedCode):
        run_trial(TrialWork(plan, plan.settings, (), "trial"), Workers(), lambda row: None, Interruption())
    assert not (theirs / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "run --method lump --stream base.json --trust evil:TextShift",
        "run --method lump --stream base.json method.base=evil:TextShift",
        pytest.param("run --method lump --stream base.json --config mine.yaml", marks=pytest.mark.slow),
        pytest.param(
            "run --method evil:TextShift --stream runs/small/small.json optim.epochs=1", marks=pytest.mark.slow
        ),
    ],
)
def test_a_class_that_the_user_names_is_loaded(words, theirs, tmp_path, capsys):
    (theirs / "mine.yaml").write_text("method: {base: evil:TextShift}\n")
    status = main([*words.split(), "--runs", str(tmp_path), "--store", str(theirs / "runs" / "store")])
    assert status == 0, capsys.readouterr().err
    assert (theirs / "ran").exists()


@pytest.mark.slow
def test_a_model_from_elsewhere_is_loaded_where_python_code_trusts_it(theirs, tmp_path):
    with pytest.raises(ctvr.ConfigError, match="add --trust"):
        ctvr.load(theirs / "model")
    with pytest.raises(ctvr.ConfigError, match="is neither a class nor an address"):
        ctvr.load(theirs / "model", trust="evil")
    assert not (theirs / "ran").exists()
    ctvr.run(EVIL, theirs / "runs/small/small.json", runs=tmp_path, settings={"optim.epochs": 0}, keep_model=True)
    methods._trusted.clear()
    run = Tracker(default_uri(tmp_path), tmp_path).find_runs()[0]
    folder = Tracker(default_uri(tmp_path), tmp_path).download(run.run_id, "model")
    with pytest.raises(UntrustedCode):
        ctvr.load(folder)
    assert ctvr.load(folder, trust=EVIL).method == EVIL


def test_an_argument_that_is_an_existing_file_names_no_class(theirs, capsys):
    (theirs / EVIL).touch()
    try:
        assert main(["methods", EVIL]) == 2
        assert not missing_from(capsys.readouterr().err, "--trust", EVIL)
        assert main(["methods", EVIL, "--trust", EVIL]) == 0
    finally:
        (theirs / EVIL).unlink()


def test_an_installed_method_finds_no_module_in_the_present_folder(theirs, tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "honest-1.dist-info").mkdir(parents=True)
    (site / "honest-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: honest\nVersion: 1\n")
    (site / "honest-1.dist-info" / "entry_points.txt").write_text("[ctvr.methods]\nhonest = honest:TextShift\n")
    optional = "try:\n    import evil\nexcept ImportError:\n    evil = None\n"
    (site / "honest.py").write_text(EXAMPLE.read_text().replace("import os\n", f"import os\n{optional}"))
    monkeypatch.syspath_prepend(str(site))
    for name in ("honest", "honest:TextShift"):
        sys.modules.pop("honest", None)
        assert methods.find_method(name).__module__ == "honest"
        assert not (theirs / "ran").exists()
    sys.modules.pop("honest", None)


def test_the_code_of_a_trusted_class_may_name_other_classes(theirs, tmp_path, monkeypatch):
    text = EXAMPLE.read_text().replace(
        "Config = TextShiftConfig\n",
        'Config = TextShiftConfig\n    PRESETS = {"a": {"method.base": "evil:TextShift"}}\n',
    )
    (tmp_path / "own.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    methods.trust(["own:TextShift"])
    methods.find_method("own:TextShift")
    assert EVIL in methods.trusted()
    sys.modules.pop("own", None)


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("my_file:MyMethod", ["my_file:MyMethod"]),
        ("--baselines=lwf,a.b:C,zero_shot", ["a.b:C"]),
        ("--space=method.base=a:B,c-d:e", ["a:B", "c-d:e"]),
        (["lump", "a:B"], ["a:B"]),
        ("https://me:secret@host/x?token=a:b", []),
        ("s3://bucket/a:b", []),
        ("12:30", []),
        (0.5, []),
    ],
)
def test_classes_are_found_in_words(word, names):
    assert methods.named_classes([word]) == names


def test_unnamed_class_is_refused_before_its_import(theirs):
    with refuses("os:getcwd", kind=UntrustedCode, where="method"):
        resolve({"method": "os:getcwd", "stream": "x"})


def test_a_row_of_a_table_is_no_class(theirs):
    methods.trust(["lwf:original", "--baselines=camoe:dsl,zero_shot", "mine:lower"])
    assert methods.trusted() == ("mine:lower",)


def test_only_the_users_own_modules_find_files_of_the_current_folder(tmp_path, monkeypatch):
    """An installed module that probes for an optional package must not find one, although the user has named a class
    here.
    """
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "probing.py").write_text("try:\n    import optional\nexcept ImportError:\n    pass\n")
    (tmp_path / "optional.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    (tmp_path / "beside.py").write_text("import further\n\ndef late():\n    import later\n    return later\n")
    for name in ("further", "later", "mine_space"):
        (tmp_path / f"{name}.py").write_text("")
    imports = "import importlib\nbeside = importlib.import_module('beside')\n"
    (tmp_path / "mine.py").write_text(f"{EXAMPLE.read_text()}\n{imports}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    methods.trust(["mine:TextShift"])
    try:
        found = methods.find_method("mine:TextShift")
        assert sys.modules[found.__module__].beside.late() is sys.modules["later"]
        importlib.import_module("probing")
        assert "further" in sys.modules
        assert not (tmp_path / "ran").exists()
        assert importlib.util.find_spec("optional") is None
        assert importlib.util.find_spec("mine_space") is not None
    finally:
        for name in ("mine", "beside", "further", "later", "probing"):
            sys.modules.pop(name, None)
