"""Tables are data: those that are shipped name rows that exist, and a file that breaks the format is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from methods import CONFIGURATIONS, METHODS
from orchestrator.config import build
from orchestrator.errors import ConfigError
from orchestrator.on_ray.plan import SearchConfig
from orchestrator.streams.load import RENDERED
from orchestrator.tables.paper_numbers import paper_numbers, published_tables
from orchestrator.tables.presets import as_data, load_preset, names_table, parse_preset, preset_names

GOOD = {"title": "t", "protocol": "ctvr", "stream": "shapes-5", "rows": [{"name": "lwf"}]}


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_table_names_registered_rows_and_a_search_that_exists(name):
    preset = load_preset(name)
    assert {row.method for row in preset.rows} <= {*METHODS, *CONFIGURATIONS}
    search = build(SearchConfig, {**preset.search, "trials": preset.search["trials"] or 1}, "search")
    is_ablation = name in published_tables()
    assert (preset.search["trials"], preset.seeds) == (0 if is_ablation else 8, 3)
    assert search.trials >= 1
    assert preset.stream in RENDERED
    assert parse_preset(json.loads(json.dumps(as_data(preset)))) == preset


def test_the_shipped_tables_are_complete_and_in_the_papers_order():
    assert [row.name for row in load_preset("ctvr-table1").rows] == [*paper_numbers("msrvtt-10")["methods"]]
    assert [row.name for row in load_preset("cvlm-table1").rows] == [*paper_numbers("cvlm")["methods"]]
    assert [row.name for row in load_preset("ctvr-table1").rows if not row.searched] == ["zero_shot"]


def test_a_word_is_a_table_by_its_name_or_as_a_file():
    assert names_table("ctvr-table1")
    assert names_table("folder/mine.json")
    assert not names_table("released")
    assert not names_table("")


def test_some_rows_of_a_table_keep_its_order():
    preset = load_preset("ctvr-table1")
    assert [row.name for row in preset.only(["lwf", "zero_shot"]).rows] == ["zero_shot", "lwf"]
    assert preset.only([]) == preset
    preset = load_preset("camoe-table7")
    assert [row.name for row in preset.only(["camoe:dsl", "entity", "camoe"]).rows] == ["camoe", "camoe:dsl,entity"]
    with pytest.raises(ConfigError, match="--rows: the table has no row 'camoe:entity,dsl'|no row 'dsl'"):
        preset.only(["camoe:entity", "dsl"])


def test_a_row_names_several_presets_or_has_words_of_its_own():
    rows = [
        {"name": "camoe:dsl,entity"},
        {"name": "camoe", "presets": ["dsl", "entity"]},
        {"name": "18 frames", "method": "tempme", "presets": ["full"]},
    ]
    found = parse_preset({**GOOD, "rows": rows}).rows
    assert [(row.method, row.presets) for row in found] == [
        ("camoe", ("dsl", "entity")),
        ("camoe", ("dsl", "entity")),
        ("tempme", ("full",)),
    ]
    with pytest.raises(ConfigError, match="the name 'camoe:dsl' lists presets too"):
        parse_preset({**GOOD, "rows": [{"name": "camoe:dsl", "presets": ["entity"]}]})


def test_settings_of_a_row_win_over_the_tables_and_those_for_a_stream_over_both():
    row = {"name": "lwf", "settings": {"a.x": 2}, "on": {"shapes-*": {"a.y": 3}}, "only": ["shapes-*", "cvlm"]}
    table = parse_preset(
        {**GOOD, "settings": {"a.x": 1, "a.y": 1}, "on": {"cvlm": {"a.x": 9, "a.z": 9}}, "rows": [row]}
    )
    assert table.settings_of(table.rows[0], ["shapes-5"]) == {"a.x": 2, "a.y": 3}
    assert table.settings_of(table.rows[0], ["mine", "cvlm"]) == {"a.x": 2, "a.y": 1, "a.z": 9}
    assert [table.rows[0].is_for([name]) for name in ("shapes-20", "cvlm", "shapes", "msrvtt-10")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "is no table. Write an object with title"),
        ({**GOOD, "rows": {}}, "is no table"),
        ({**GOOD, "rows": []}, "rows: is empty"),
        ({**GOOD, "rows": ["lwf", "lwf"]}, "lwf is listed 2 times"),
        ({**GOOD, "rows": [3]}, r"rows\[1\]: is 3. Write a method's name"),
        ({**GOOD, "rows": [{"nam": "lwf"}]}, r"rows\[1\].nam: no such setting. Did you mean 'name'"),
        ({**GOOD, "rows": [{"name": "lwf", "searched": "perhaps"}]}, r"rows\[1\].searched: .*'perhaps'"),
        ({**GOOD, "protocol": "other"}, "protocol: .*'other'"),
        ({**GOOD, "titel": "x"}, "titel: no such setting. Did you mean 'title'"),
        ({"title": "x"}, "is required"),
    ],
)
def test_a_file_that_breaks_the_format_is_refused_in_one_line(tmp_path: Path, data, message):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=f"mine.json: .*{message}") as error:
        load_preset(str(file))
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_json_is_refused(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text("{")
    with pytest.raises(ConfigError, match="mine.json"):
        load_preset(str(file))
    with pytest.raises(ConfigError, match="there is no table 'ctvr-table'. Did you mean 'ctvr-table\d'. Tables:"):
        load_preset("ctvr-table")
