"""Every table and figure of the papers has a table preset, or a reason for its absence."""

import re

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.tables.paper_items import Item, find, read, text
from ctvr.orchestrator.tables.paper_numbers import benchmarks, not_implemented, published_tables
from ctvr.orchestrator.tables.presets import load_preset, preset_names
from tests.refusing import refuses

PAPERS, ITEMS = read()
FILES = {"framefusion": "000", "camoe": "001", "structalign": "002", "bmu": "003", "tempme": "004"}
# Diagrams and illustrations, and a table of data sets
NO_RESULTS = {
    *(f"framefusion/fig{number}" for number in (1, 4)),
    *(f"camoe/fig{number}" for number in (1, 2, 3, 4)),
    *(f"structalign/{name}" for name in ("fig1", "fig2", "fig3", "table1")),
    "bmu/fig2",
    *(f"tempme/fig{number}" for number in (2, 3, 6)),
}


def test_every_item_names_a_table_that_is_there_and_every_table_is_an_item():
    assert len({item.item for item in ITEMS}) == len(ITEMS)
    assert {item.item.partition("/")[0] for item in ITEMS} == set(PAPERS)
    for item in ITEMS:
        if item.preset:
            assert load_preset(item.preset).rows
            assert find(item.item) is item
        else:
            with pytest.raises(ConfigError, match=re.escape(f"{item.item} ({item.shows}) does not run: {item.why}")):
                find(item.item)
    assert {item.preset for item in ITEMS if item.preset} == set(preset_names())


def test_every_paper_table_and_figure_is_an_item(shared):
    printed = set()
    for paper, number in FILES.items():
        (file,) = (shared / "papers").glob(f"{number}_*.txt")
        found = re.findall(r"(?m)(?:^|>|\s)(Table|Figure) (\d+)[:.] ", file.read_text())
        printed |= {f"{paper}/{'table' if kind == 'Table' else 'fig'}{n}" for kind, n in found}
    assert len(printed) > 60
    listed = {item.item for item in ITEMS if not item.item.startswith("new/")}
    assert printed - NO_RESULTS - listed == set()
    assert listed & NO_RESULTS == set()
    assert listed - printed == set()


def test_the_list_names_every_item():
    shown = text()
    for item in ITEMS:
        assert item.item in shown
        assert (item.command or item.why) in shown
    assert shown.endswith(f"{sum(bool(item.preset) for item in ITEMS)} of {len(ITEMS)} tables and figures run.")


def test_rows_without_a_method_are_named_from_the_papers_numbers():
    assert "RAP, ViT-B/16" in not_implemented("tempme-table2")
    assert {"EVIT", "STA", "DiffRate", "ToMe"}.isdisjoint(not_implemented("tempme-table2"))
    assert "RAP, ViT-B/16" in find("tempme/table2").notes[0]
    assert benchmarks("tempme-table3") == ("activitynet", "didemo", "lsmdc")
    assert not_implemented("ctvr-table1") == benchmarks("ctvr-table1") == ()
    assert set(published_tables()) <= set(preset_names())


def test_an_item_has_a_preset_or_a_reason():
    for wrong in ({}, {"preset": "ctvr-table1", "why": "it rains"}):
        with pytest.raises(ValueError, match="either a preset that reproduces it or the reason"):
            Item(item="a/b", shows="c", **wrong)
    with refuses("tempme/tabel2", "tempme/table2", where="reproduce"):
        find("tempme/tabel2")
