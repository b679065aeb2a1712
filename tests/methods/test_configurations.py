"""Rows of tables that are a method with a preset: their names work wherever a method's name does."""

import pytest

from ctvr.methods import CONFIGURATIONS, METHODS, find_method
from ctvr.orchestrator.catalog.methods import methods_text
from ctvr.orchestrator.settings.presets import configured, get_method, presets_of
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps.search_spaces import method_text
from ctvr.orchestrator.tables.unpublished_settings import footnote, unpublished
from tests.refusing import refuses

# name -> the method, what makes it the row, and what the row's own files said of its paper before they went
ROWS = {
    "tome": ("lora", {"method.reducer.name": "tome"}, {}),
    "evit": ("lora", {"method.reducer.name": "evit"}, {}),
    "sta": ("lora", {"method.reducer.name": "sta"}, {}),
    "diffrate": ("lora", {"method.reducer.name": "diffrate"}, {}),
    "testa": ("lora", {"method.reducer.name": "testa"}, {}),
    "bmu_moco_local": ("bmu_moco", {"method.use_global": False}, {}),
    "er_ring_moco": ("er_ring", {"method.base": "base_moco"}, {"method.buffer_size": 10_000}),
    "der_moco": ("der", {"method.base": "base_moco"}, {"method.buffer_size": 10_000}),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_its_method_with_one_setting_and_so_computes_the_same(name):
    method, own, _ = ROWS[name]
    row = resolve({"method": name, "stream": "s"})
    base = resolve({"method": method, "stream": "s", **own})
    assert row.settings == base.settings
    assert (row.name, base.name) == (name, method)
    assert find_method(name) is find_method(method)
    assert resolve(row.settings, presets=row.presets) == row  # as a trial, a rerun or a stored model reads it


@pytest.mark.parametrize("name", ROWS)
def test_a_rows_presets_are_its_own(name):
    _, own, paper = ROWS[name]
    for preset in presets_of(name):
        made = resolve({"method": name, "stream": "s"}, presets=[preset])
        assert made.name == name
        assert made.settings.items() >= own.items(), preset
    assert resolve({"method": name, "stream": "s"}, presets=["paper"]).settings.items() >= paper.items()
    assert {"paper", "shapes"} <= set(presets_of(name))


def test_an_original_is_of_its_own_retriever():
    """The row `tome` has ToMe's original settings; ER's command does not cover momentum contrast."""
    assert resolve({"method": "tome", "stream": "s"}, presets=["original"]).optim.epochs == 0
    assert "original" in presets_of("er_ring")
    with refuses("er_ring_moco", "original", where="preset"):
        resolve({"method": "er_ring_moco", "stream": "s"}, presets=["original"])


def test_a_preset_that_makes_another_row_is_refused():
    assert "table2-row4" in presets_of("bmu_moco_local")
    with refuses("bmu_moco_local", "table2-row6", where="preset", write=("table2-row1",)):
        resolve({"method": "bmu_moco_local", "stream": "s"}, presets=["table2-row6"])


def test_a_preset_of_a_configuration_is_applied_once():
    assert configured("er_ring_moco", ["paper"]) == ("er_ring", ("bmu-moco", "bmu-moco-paper"))
    assert configured("er_ring", ["bmu-moco", "bmu-moco-paper"]) == ("er_ring", ("bmu-moco", "bmu-moco-paper"))
    assert configured("tome", ["shapes"]) == ("lora", ("tome", "shapes"))
    published = resolve({"method": "der_moco", "stream": "s"}, presets=["paper"])
    assert (published.data.batch_size, published.optim.schedule) == (48, "first_epoch")


@pytest.mark.parametrize(("strategy", "base"), [("lwf", "tome"), ("er_ring_moco", "bmu_moco_local")])
def test_a_strategy_wraps_a_row_by_its_name(strategy, base):
    method, own, _ = ROWS[base]
    made = resolve({"method": strategy, "method.base": base, "stream": "s"}, presets=["shapes"])
    assert made.method.base == method
    assert {f"base.{name.partition('.')[2]}": value for name, value in own.items()}.items() <= made.settings.items()


def test_a_search_of_a_row_has_its_own_space():
    pytest.importorskip("ray.tune")
    from ctvr.orchestrator.sweeps.search_spaces import search_space

    for name in CONFIGURATIONS:
        fixed, space, paper = search_space(name)
        assert set(paper) <= set(space)
        resolve({**fixed, "method": name, "stream": "s", **{setting: space[setting].sample() for setting in space}})
        assert resolve({**fixed, "method": name, "stream": "s", **paper}).name == name
        assert set(unpublished(name)) & set(space) <= set(paper)
    assert "base.tau" in search_space("er_ring_moco")[1]
    assert "method.order" not in search_space("bmu_moco_local")[1]
    assert "method.reducer.r" not in search_space("lora")[1]


def test_the_footnote_of_a_row_names_unpublished_settings():
    settings = {"method": "er_ring", "method.base": "base_moco", "method.ratio": "1.0", "method.buffer_size": "10000"}
    assert footnote(settings, "er_ring_moco").endswith(": method.ratio=1.0")
    assert "method.buffer_size=10000" in footnote(settings)


def test_method_list_has_all_rows_and_suggests_names():
    text = methods_text()
    for name, (method, preset) in CONFIGURATIONS.items():
        (line,) = (line for line in text.splitlines() if line.partition(" ")[0] == name)
        assert line.endswith(f" {method} with preset {preset}")
        assert "method.base" in method_text(name) or name not in {"er_ring_moco", "der_moco"}
        assert not set(CONFIGURATIONS) & set(METHODS)
    with refuses("er_ring_mocco", kind=ValueError, where="method", write=("er_ring_moco",)):
        get_method("er_ring_mocco")
