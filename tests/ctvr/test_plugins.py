"""Another package adds a method and a stream without changes to our code."""

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ctvr
from ctvr import methods
from ctvr.methods import plug_ins
from ctvr.methods.tiny_models import make_batch
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.keys.run_key import code_digests, protocol_digest
from ctvr.orchestrator.learning.evaluation.protocols import protocol_of
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.method_checks.subject import Subject, learn
from ctvr.orchestrator.on_ray.search import make_searcher
from ctvr.orchestrator.on_ray.successive_halving import SuccessiveHalving
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import PROTOCOLS
from ctvr.orchestrator.sweeps.plan import plan_sweep, request_search
from ctvr.orchestrator.sweeps.table import made_tables
from tests.refusing import refuses

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "text_shift"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example as an installer does: its module, with its entry points next to it."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    site = tmp_path_factory.mktemp("site")
    for module in ("text_shift.py", "fresh_index.py", "one_at_a_time.py"):
        shutil.copy(EXAMPLE / module, site)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    dist = site / "ctvr_text_shift-0.1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n{name} = {value}"
        for group, found in project["entry-points"].items()
        for name, value in found.items()
    ]
    (dist / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


@pytest.fixture
def _on_path(installed: Path, learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("TWO_COLOURS", str(learned / "small" / "small.json"))
    for name in ("text_shift", "fresh_index", "one_at_a_time"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("_on_path")
def test_a_method_and_a_stream_of_another_package_run_and_are_asked(learned, tmp_path):
    assert len((EXAMPLE / "text_shift.py").read_text().splitlines()) < 60
    assert "text_shift" in ctvr.list_methods()
    assert "two_colours" in ctvr.list_streams(runs=tmp_path)
    execution = {"runs": tmp_path, "store": str(shutil.copytree(learned / "store", tmp_path / "store"))}
    run = ctvr.run("text_shift", "two_colours", settings={"optim.epochs": 1, "method.lr": 0.1}, **execution)
    assert (run.method, run.stream, run.settings["method.lr"]) == ("text_shift", "small", 0.1)
    model = ctvr.load("text_shift", **execution)
    assert model.trained.method.shift.abs().max() > 0
    zero = ctvr.load("zero_shot", runs=learned)
    assert not torch.equal(model.encode_text("a red star"), zero.encode_text("a red star"))
    assert len(model.search("a red star", k=3)) == 3


@pytest.mark.usefixtures("_on_path")
def test_sources_of_a_plug_in_are_part_of_a_runs_key(installed):
    before = code_digests("text_shift")
    assert code_digests("text_shift:TextShift")["code of text_shift:TextShift"] == before["code of text_shift"]
    assert before["code of the method"] != code_digests("zero_shot")["code of the method"]
    file = installed / "text_shift.py"
    text = file.read_text()
    try:
        file.write_text(text + "# another version\n")
        assert code_digests("text_shift")["code of text_shift"] != before["code of text_shift"]
    finally:
        file.write_text(text)


def _with_protocol(manifest: Path, name: str) -> Path:
    """Write the manifest with another protocol next to the original."""
    data = json.loads(manifest.read_text())
    other = manifest.with_name(f"{name}.json")
    other.write_text(json.dumps({**data, "name": name, "protocol": name}))
    return other


@pytest.mark.slow
@pytest.mark.usefixtures("_on_path")
def test_plug_in_protocol_that_reencodes_equals_a_fresh_index(learned, tmp_path):
    manifest = learned / "small" / "small.json"
    other = _with_protocol(manifest, "fresh_index")
    store = str(shutil.copytree(learned / "store", tmp_path / "store"))
    places = RunPaths(tmp_path, store=store)
    ages = {"evaluation.reencode": (50, 100), "evaluation.reencode_after": "all", "optim.epochs": 1}

    def done(method, stream):
        settings = {**load_stream(stream, tmp_path).settings, **ages, "method": method, "stream": str(stream)}
        found = execute(resolve({**settings, "optim.lr_scale": 500}), places, reuse=False)
        return found.record, Commits(places.open_store(), found.key).galleries(found.record.done)

    (stored, old), (fresh, new) = done("clip4clip", manifest), done("clip4clip", other)
    assert not torch.equal(old[0], new[0])  # the protocol encoded the videos of task 1 again
    assert torch.equal(old[1], new[1])
    for after, before in zip(fresh.metrics, stored.metrics, strict=True):
        assert after["stream/t2v/r1"] == before["stream/index/r1_100"]
        assert after["stream/index/gap"] == after["stream/index/videos"] == 0
    assert fresh.ranks == stored.aged_ranks["100"]
    assert stored.ranks == stored.aged_ranks["0"]
    zero, _ = done("zero_shot", other)
    gaps = [value for found in zero.metrics for name, value in found.items() if "/index/gap" in name or "bwf" in name]
    assert len(gaps) > 4
    assert set(gaps) == {0.0}
    ctvr.run("zero_shot", other, runs=tmp_path, store=store)
    (table,) = made_tables(ExecutionConfig(runs=tmp_path), stream="fresh_index")
    assert any("protocol fresh_index of another package" in mark for mark in table.rows[0].marks)


@pytest.mark.usefixtures("_on_path")
def test_protocol_sources_are_part_of_the_run_key(installed, learned, tmp_path):
    before = protocol_digest("fresh_index")
    assert protocol_digest("ctvr") == {}
    file = installed / "fresh_index.py"
    text = file.read_text()
    try:
        file.write_text(text + "# another version\n")
        assert protocol_digest("fresh_index") != before
    finally:
        file.write_text(text)
    unknown = _with_protocol(learned / "small" / "small.json", "fresh_indx")
    with refuses("fresh_index", kind=ctvr.ConfigError, where="fresh_indx.json"):
        ctvr.run("zero_shot", unknown, runs=tmp_path)


def test_a_class_that_is_no_protocol_is_refused_in_one_line(learned, tmp_path, monkeypatch):
    dist = tmp_path / "odd-1.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    lines = "[ctvr.protocols]\nodd = odd_one:Odd\nodder = odd_one:Gone\nctvr = odd_one:Odd\n"
    (dist / "entry_points.txt").write_text(lines)
    (tmp_path / "odd_one.py").write_text("class Odd: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(plug_ins.installed("protocols", PROTOCOLS)) == {"odd", "odder"}  # a name of ours wins
    stream = load_stream(_with_protocol(learned / "small" / "small.json", "odd"), tmp_path)
    assert "protocol odd of another package" in stream.table_caveat
    with refuses("odd_one:Odd", "CTVR", "CVLM", kind=ctvr.ConfigError, where="protocol"):
        protocol_of(stream)
    with refuses("odder", "odd_one:Gone", kind=ctvr.ConfigError):
        protocol_of(replace(stream, protocol="odder"))


@pytest.mark.wording
def test_a_name_of_ours_wins_and_what_is_no_method_is_one_line(tmp_path, monkeypatch):
    dist = tmp_path / "thief-1.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: thief\nVersion: 1\n")
    (dist / "entry_points.txt").write_text(
        "[ctvr.methods]\nlwf = thief:Thing\ntome = thief:Thing\nthing = thief:Thing\n"
    )
    (tmp_path / "thief.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"lwf", "tome"}.isdisjoint(methods.plugins())
    assert methods.find_method("lwf").__module__ == "ctvr.methods.lwf"
    for name, message in (
        ("thing", "method: thing: Thing of thief is not a ctvr.Method with a dataclass Config."),
        ("thief:Other", "method: thief:Other: Other of thief is not a ctvr.Method"),
        ("no_pkg.mod:Thing", "method: no_pkg.mod:Thing: no_pkg.mod cannot be imported (No module named 'no_pkg')."),
        ("thng", "method: no method called 'thng'. Did you mean thing?"),
    ):
        with pytest.raises(ctvr.ConfigError) as caught:
            ctvr.run(name)
        assert str(caught.value).startswith(message)


def test_a_subclass_inherits_all_that_it_does_not_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = """
from ctvr.methods.clip4clip import Clip4Clip
from ctvr.methods.lwf import LwF

class Halved(Clip4Clip):
    def losses(self, batch):
        return {name: term / 2 for name, term in super().losses(batch).items()}

class Mine(LwF):
    pass
"""
    (tmp_path / "heirs.py").write_text(source)
    monkeypatch.delitem(sys.modules, "heirs", raising=False)
    learned = {}
    for name, settings in (("heirs:Halved", {"method.lr": 3e-5}), ("heirs:Mine", {"method.base": "heirs:Halved"})):
        methods.trust(["heirs:Halved", name])
        experiment = resolve({"method": name, "stream": "s", "data.num_frames": 4, **settings}, presets=["paper"])
        learned[name] = method = Subject(experiment).make()
        assert len(learn(method, 0)) == 2
    halved, mine = learned.values()
    assert halved.config.lr == 3e-5
    assert (type(mine.base), mine.config.temperature) == (type(halved), 2.0)
    batch, plain = make_batch(4, 4, seed=3), Subject.of("clip4clip").make()
    plain.load_state_dict(halved.state_dict())
    assert torch.equal(2 * halved.losses(batch)["contrastive"], plain.losses(batch)["contrastive"])
    assert code_digests("heirs:Halved")["code of the method"] != code_digests("zero_shot")["code of the method"]


@pytest.mark.wording
def test_a_file_that_defines_no_method_is_one_line_with_the_line_to_correct(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = "from ctvr import Method\n"
    for module, source, cls, message in (
        ("cut", "x = 1\ndef f(:\n", "Own", r"cut cannot be imported \(SyntaxError: .*cut\.py, line 2\)\. Correct that"),
        ("raises", "x = 1\nraise RuntimeError('no license')\n", "Own", r"RuntimeError: no license, .*, line 2\)"),
        ("needs", "import no_such_library\n", "Own", r"needs cannot be imported .*\. Install no_such_library\."),
        ("few", f"{base}class Few(Method):\n    class Config: pass\n", "Few", "Few of few is not a ctvr.Method with"),
        ("own", f"{base}class Own(Method): pass\n", "Onw", r"Onw of own is not .* Did you mean own:Own\?"),
        ("mine", f"{base}class Own(Method): pass\n", "own", r"own of mine is not .* Did you mean mine:Own\?"),
        ("text", f"{base}from dataclasses import dataclass\nclass Text(Method):\n    @dataclass\n"
         "    class Config: pass\n    def __init__(self, config, backbone): pass\n",
         "Text", "Text does not define encode_video"),
    ):  # fmt: skip
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.setitem(sys.modules, module, sys)
        del sys.modules[module]  # imported by this test only: undone at its end
        with pytest.raises(ctvr.ConfigError, match=message):
            ctvr.run(f"{module}:{cls}", "shapes-5", runs=tmp_path / "runs")
    for name in ("mine", "mine.py", "./mine.py", "mine.Own", "mine.py:Own"):
        with pytest.raises(ctvr.ConfigError, match=r"Did you mean mine:Own\?"):
            ctvr.run(name, "shapes-5", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_an_old_record_means_our_class_unless_the_user_has_the_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry and not (Path(entry) / "methods").exists()])
    assert methods.place_of("ctvr.methods.lwf:LwF") == "ctvr.methods.lwf:LwF"
    assert methods.find_method("ctvr.methods.lwf:LwF") is methods.find_method("lwf")
    assert code_digests("ctvr.methods.lwf:LwF") == code_digests("ctvr.methods.lwf:LwF") == code_digests("lwf")
    assert methods.place_of("ctvr.methods.lwf:Other") == "ctvr.methods.lwf:Other"
    (tmp_path / "methods.py").write_text("")
    assert methods.place_of("ctvr.methods.lwf:LwF") == "ctvr.methods.lwf:LwF"


@pytest.mark.usefixtures("_on_path")
def test_a_searcher_of_another_package_starts_from_the_recommended_settings(learned, tmp_path):
    execution = ExecutionConfig(tmp_path, str(tmp_path / "store"))
    request = request_search("clip4clip", "two_colours", "s", {}, search={"searcher": "one_at_a_time", "trials": 24})
    plan = plan_sweep(request, execution)
    planned = plan.searches[""]
    search = replace(plan.search_config, bracket_size=4, scheduler="none")
    made = SuccessiveHalving(make_searcher(search, planned.search_space, 1), search, 1, dict)
    while due := made.next_segments():
        for trial, until in due:
            made.report(trial, {"task": 1, search.metric: -abs(math.log10(trial.point["method.lr"] / 3e-7))}, until)
            made.end(trial, until)
    assert len(made.trials) == 24
    assert made.trials[0].point == planned.recommended_point
    for number, trial in enumerate(made.trials[4:], start=4):
        known = made.trials[: number // 4 * 4]  # those of earlier brackets
        best = max(known, key=lambda each: each.scores[1]).point
        assert sum(trial.point[name] != best[name] for name in best) == 1
    assert best != planned.recommended_point
    two = replace(search, metric=f"{search.metric},stream/t2v/bwf", mode="max,min", trials=4)
    made = SuccessiveHalving(make_searcher(two, planned.search_space, 1), two, 1, dict)
    while due := made.next_segments():
        for trial, until in due:
            made.report(trial, {"task": 1, search.metric: 1.0, "stream/t2v/bwf": 0.0}, until)
            made.end(trial, until)
    assert len(made.trials) == 4
    with refuses("one_at_a_tim", "one_at_a_time", where="search", settings=("searcher",)):
        plan_sweep(replace(request, preset=replace(request.preset, search={"searcher": "one_at_a_tim"})), execution)
