"""A setting names an object of another package, or of the user's files; what cannot be used is refused in one line."""

import sys
from dataclasses import replace

import pytest

from ctvr import methods
from ctvr.orchestrator.errors import UntrustedCode
from ctvr.orchestrator.keys.foreign_code import digest_plugins
from ctvr.orchestrator.settings.plugins import Plugins
from ctvr.orchestrator.settings.resolve import resolve
from tests.entry_points import install
from tests.refusing import refuses

KINDS = Plugins("metric", "metrics", "evaluation.metrics", ("ours",))
SOURCE = """
from fine_parts import STEP
def good(x): return x + STEP
def fails(x): return 1 / x
number = 3
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Install two packages with entry points; the second has a module that cannot be imported."""
    points = {name: f"fine:{name}" for name in ("good", "fails", "number", "gone")} | {"ours": "fine:good"}
    install(tmp_path, "fine", {"ctvr.metrics": points}, fine=SOURCE, fine_parts="STEP = 1")
    install(tmp_path, "broken", {"ctvr.metrics": {"lacks": "broken:x"}}, broken="import no_such_library")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("fine", "fine_parts", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_an_entry_point_is_loaded_and_its_errors_are_one_line_with_their_place(site):
    good = KINDS.load("good")
    assert KINDS.call("good", good, 2) == 3
    with refuses("fails", "ZeroDivisionError", f"{site / 'fine.py'}", "4", where="evaluation.metrics", remedy=True):
        KINDS.call("fails", KINDS.load("fails"), 0)
    for name, said in (("number", "int"), ("gone", "gone"), ("lacks", "no_such_library"), ("godo", "good")):
        with refuses(said, where="evaluation.metrics"):
            KINDS.load(name)
    with refuses("thing", "x", where="w", remedy=True):
        Plugins("thing", "nothing", "w").load("x")


def test_a_built_in_name_cannot_be_replaced_and_the_user_is_told(site, caplog):
    assert KINDS.load("ours") is None
    KINDS.check("ours")
    (warned,) = caplog.messages
    assert {"evaluation.metrics:", "ours", "fine:good"} <= set(warned.split())
    assert KINDS.digests(["ours"]) == {}


def test_two_packages_with_one_name_are_refused(site):
    install(site, "rival", {"ctvr.metrics": {"good": "rival:good"}}, rival="def good(x): return x")
    with refuses("good", "fine", "rival", where="evaluation.metrics", remedy=True):
        KINDS.load("good")


def test_a_function_in_a_file_is_loaded_only_if_the_user_trusts_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_measure.py").write_text("def half(): return 0.5")
    monkeypatch.delitem(sys.modules, "own_measure", raising=False)
    monkeypatch.setattr(methods, "_trusted", set())
    with refuses("own_measure:half", kind=UntrustedCode, where="evaluation.metrics"):
        KINDS.load("own_measure:half")
    assert "own_measure" not in sys.modules
    stream = {"evaluation.metrics": ["own_measure:half"]}  # recommended by a manifest
    for recommended in (stream, {"optim.name": "own_measure:half"}, {"tracking.mirror": "own_measure:half"}):
        with refuses("own_measure:half", kind=UntrustedCode, where=next(iter(recommended))):
            resolve({"method": "zero_shot", "stream": "s"}, recommended).check_plugins()
    assert "own_measure" not in sys.modules
    methods.trust(["evaluation.metrics=own_measure:half"])
    assert KINDS.load("own_measure:half")() == 0.5


def test_the_key_contains_the_code_of_a_plug_in_and_nothing_of_a_built_in(site):
    before, all_before = KINDS.digests(["good"]), digest_plugins()
    assert list(before) == ["code of metric good"]
    assert before["code of metric good"] != KINDS.digests(["fails"])["code of metric fails"]  # another function
    (site / "fine_parts.py").write_text("STEP = 2")
    assert KINDS.digests(["good"]) != before
    assert digest_plugins() != all_before


def test_settings_that_name_no_plug_in_are_not_in_the_key(site, small_stream):
    plain = resolve({"method": "zero_shot", "stream": "s"})
    assert not [name for name in plain.environment_digests(small_stream) if "metric" in name or "optimizer" in name]
    given = resolve({"method": "zero_shot", "stream": "s", "evaluation.metrics": "good"})
    environment = plain.environment_digests(small_stream)
    former = {name: value for name, value in plain.settings.items() if name != "evaluation.metrics"}
    assert replace(plain, settings=former).key_in(environment) == plain.key_in(environment)
    assert given.key(small_stream) != plain.key(small_stream)
    for name in ("csv", "fine:good"):  # a mirror changes no result
        mirrored = resolve({"method": "zero_shot", "stream": "s", "tracking.mirror": name})
        assert mirrored.key(small_stream) == plain.key(small_stream)
    with refuses("adamww", "adamw", where="optim.name"):
        resolve({"method": "clip4clip", "stream": "s", "optim.name": "adamww"}).check_plugins()
