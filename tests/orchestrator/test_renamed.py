"""Old names are read wherever names come from outside, with one notice for each."""

from pathlib import Path

import pytest

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, find_method
from ctvr.methods.layers.reduction.config import TRAINED_REDUCERS
from ctvr.methods.settings import groups_of
from ctvr.orchestrator import renamed
from ctvr.orchestrator.config import parse_overrides
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.setting_groups import setting_names
from ctvr.orchestrator.sweeps.settings_file import read_settings


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        renamed, "SETTINGS", {"optim.old": "optim.new", "method.old": "method.new", "search.old": "search.new"}
    )
    monkeypatch.setattr(renamed, "VALUES", {("optim.kind", "was"): "now"})
    monkeypatch.setattr(renamed, "OPTIONS", {("*", "--old"): "--new", ("sweep", "--kind=was"): "--kind=now"})
    monkeypatch.setattr(renamed, "COMMANDS", {"look": "plot"})
    monkeypatch.setattr(renamed, "HOOKS", {"remember": "on_stored"})
    monkeypatch.setattr(renamed, "_told", set())


def test_a_word_with_an_old_name_is_read_with_one_notice(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_overrides(["optim.old=3", "base.old=4"]) == {"optim.new": "3", "base.new": "4"}
    parse_overrides(["optim.old=3"])
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "`optim.old` is now `optim.new`; the old name is accepted until 0.4.",
        "`base.old` is now `base.new`; the old name is accepted until 0.4.",
    ]


def test_a_file_of_settings_may_have_old_names_and_values(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("optim:\n  old: 3\n  kind: was\n")
    assert read_settings(tmp_path / "a.yaml") == {"optim.new": 3, "optim.kind": "now"}


def test_two_values_under_both_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"optim\.new: given twice"):
        parse_overrides(["optim.old=3", "optim.new=4"])


def test_a_stored_record_is_read_without_notices(capsys: pytest.CaptureFixture[str]) -> None:
    kept = {"plan": {"settings": {"optim.old": 1}}, "request": {"search": {"old": 8, "trials": 2}}}
    assert renamed.record(kept) == {
        "plan": {"settings": {"optim.new": 1}},
        "request": {"search": {"new": 8, "trials": 2}},
    }
    assert capsys.readouterr().err == ""


def test_commands_and_options_are_read_under_their_old_names() -> None:
    assert renamed.arguments(["look", "--old=2", "a"]) == ["plot", "--new=2", "a"]
    assert renamed.arguments(["sweep", "--kind", "was", "--old", "x"]) == ["sweep", "--kind", "now", "--new", "x"]
    assert renamed.arguments(["run", "--kind", "was"]) == ["run", "--kind", "was"]


def test_a_class_with_an_old_hook_is_refused_unless_it_has_the_new_one() -> None:
    old = type("Old", (), {"remember": lambda self: None})
    with pytest.raises(ConfigError, match="defines remember, which is now on_stored"):
        renamed.check_hooks(old)
    renamed.check_hooks(type("Both", (), {"remember": None, "on_stored": None}))


@pytest.mark.parametrize("old", ["trains_all", "uses_all_parameters"])
def test_an_old_class_attribute_is_refused_with_the_line_to_write(old: str) -> None:
    said = rf"sets {old}, .*def capabilities\(cls, config\): return Capabilities\(uses_all_parameters=\.\.\.\)"
    with pytest.raises(ConfigError, match=said):
        renamed.check_hooks(type("Old", (), {old: True}))
    renamed.check_hooks(type("Both", (), {old: True, "capabilities": None}))


def test_an_old_attribute_of_an_instance_is_refused_with_the_line_to_write() -> None:
    old = type("Old", (), {})()
    renamed.check_attributes(old)
    old.is_transductive = True
    with pytest.raises(ConfigError, match=r"Old: sets is_transductive, .*Capabilities\(is_transductive=\.\.\.\)"):
        renamed.check_attributes(old)
    both = type("Both", (), {"capabilities": None})()
    both.is_transductive = True
    renamed.check_attributes(both)


def test_a_search_space_may_have_old_names() -> None:
    assert renamed.search_space({"SPACE": {"optim.old": 1}, "x": 2}) == {"SPACE": {"optim.new": 1}, "x": 2}


OLD = {"method": "lora", "method.reducer": "evit", "method.keep_rate": 0.5, "method.r": None, "method.rank": 4}
NEW = {"method": "lora", "method.reducer.name": "evit", "method.reducer.keep_rate": 0.5, "method.rank": 4}


def test_settings_of_token_reduction_are_read_as_those_of_their_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert renamed.settings({name: value for name, value in OLD.items() if name != "method.r"}) == NEW
    assert renamed.settings(NEW) == NEW
    assert renamed.setting_word("method.keep_rate=0.5,0.7", "evit") == "method.reducer.keep_rate=0.5,0.7"
    assert renamed.of_method({"method.r": 2}, "tempme") == {"method.reducer.r": 2}
    assert renamed.settings({"method": "lwf", "base.reducer": "tome"}) == {"method": "lwf", "base.reducer.name": "tome"}
    said = "`method.reducer` is now `method.reducer.name`; the old name is accepted until 0.4."
    assert capsys.readouterr().err.splitlines().count(said) == 1


def test_a_record_loses_the_settings_that_its_reducer_does_not_have() -> None:
    assert renamed.record({"plan": {"settings": OLD}, "overrides": {"method": "lora"}}) == {
        "plan": {"settings": NEW},
        "overrides": {"method": "lora"},
    }
    assert renamed.record({"method": "lora", "overrides": {"method.keep_rate": 0.5}}) == {
        "method": "lora",
        "overrides": {"method.reducer.keep_rate": 0.5},
    }


@pytest.mark.parametrize("method", ["dgl", "theirs.module:Method", ""])
def test_settings_of_other_methods_keep_names_that_reducers_have(method: str) -> None:
    given = {"method": method, "method.num_frames": 4, "method.r": 3, "method.reducer": "mine"}
    assert renamed.settings(given) == given


def test_two_values_of_a_reducers_setting_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.reducer\.r: given twice, as 2 and 3"):
        renamed.settings({"method": "tome", "method.reducer.r": 2, "method.r": 3})


def test_every_old_name_is_a_setting_of_a_reducer_today() -> None:
    fields = {
        (name, field) for name, cls in TRAINED_REDUCERS.items() for field in setting_names(cls) if field != "name"
    }
    assert {(name, field) for field, names in renamed.REDUCTION.items() for name in names} <= fields
    assert {"method.reducer.name"} <= set(resolve({"method": "tome", "stream": "s"}).settings)
    every = [name for name in (*EVERY_METHOD, *CONFIGURATIONS) if "reducer" in groups_of(find_method(name).Config)]
    assert set(every) == renamed.REDUCED
