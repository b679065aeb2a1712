"""Tables are data: shipped tables name rows that exist, and a file that violates the format is refused."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path

import pytest

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator.config import build
from ctvr.orchestrator.importers.ctvr import ACTNET_SETTINGS, MSRVTT_SETTINGS
from ctvr.orchestrator.importers.cvlm import ALONE, CVLM_SETTINGS
from ctvr.orchestrator.learning.run.factory import load_clip, make_method
from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.settings.presets import presets_of, with_recipe
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import RENDERED, load_stream
from ctvr.orchestrator.sweeps.plan import clamp_values
from ctvr.orchestrator.tables.paper_numbers import paper_numbers, published_rows, published_tables
from ctvr.orchestrator.tables.presets import (
    FOLDER,
    columns_of,
    load_preset,
    names_table,
    parse_preset,
    preset_names,
)
from ctvr.orchestrator.tracking.run_record import as_text
from tests.refusing import refused

ORIGINALS = "ctvr-table1-originals"
UNSEARCHED = (ORIGINALS, "efficient-continual", "index-age", "upgrade", "camoe-fig6", "worlds", "worlds-fair")
GOOD = {"title": "t", "protocol": "ctvr", "stream": "shapes-5", "rows": [{"name": "lwf"}]}


@cache
def embedded_settings(stream: str) -> dict[str, object]:
    return load_stream(stream, Path("unused"), render=False).settings


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_table_names_registered_rows_and_a_search_that_exists(name):
    preset = load_preset(name)
    assert {row.method for row in preset.rows} <= {*EVERY_METHOD, *CONFIGURATIONS}
    search = build(SearchConfig, {**preset.search, "trials": preset.search["trials"] or 1}, "search")
    is_searched = name not in {*published_tables(), *UNSEARCHED} and not preset.varies
    seeds = 5 if name == "tempme-table5" else 3  # as the paper says of this table alone
    assert (preset.search["trials"], preset.seeds) == (8 if is_searched else 0, seeds)
    assert search.trials >= 1
    assert preset.stream in RENDERED
    assert parse_preset(json.loads(json.dumps(asdict(preset)))) == preset


@pytest.mark.parametrize("name", preset_names())
def test_no_row_is_named_after_a_backbone_that_it_lacks(name):
    """Rows that do not set a backbone also run on streams that recommend another one."""
    preset = load_preset(name)
    named = [row for row in preset.rows if re.search(r"ViT-|MetaCLIP|[BL]/1", row.name)]
    assert [row.name for row in named if row.is_for([preset.stream])] == []
    assert [row.name for row in named if "backbone.name" not in {*row.settings, *preset.settings}] == []


def test_the_shipped_tables_are_complete_and_in_the_papers_order():
    ctvr, cvlm = ([row for row in load_preset(name).rows if not row.control] for name in ("ctvr-table1", "cvlm-table1"))
    assert [row.name for row in ctvr] == [*paper_numbers("msrvtt-10")["methods"]]
    assert [row.name for row in cvlm] == [*paper_numbers("cvlm")["methods"]]
    assert [row.name for row in ctvr if not row.searched] == ["zero_shot"]


def test_controls_are_searched_in_no_table_and_say_so_below():
    controls = [row for name in preset_names() for row in load_preset(name).rows if row.control]
    assert {row.name for row in controls} >= {
        "framefusion_moe:train-references",
        "upper_bound:framefusion",
        "upper_bound:moe",
    }
    assert all("control" in row.notes[0] for row in controls)
    assert not any(row.searched for row in load_preset("ctvr-table1").rows if row.control)


def test_the_row_with_the_codes_forward_and_loss_differs_from_the_release_in_its_recipe_only():
    table = load_preset("worlds-fair")
    (row,) = (row for row in table.rows if row.name == "framefusion_moe, the code's forward and loss")
    released = resolve({"method": "framefusion_moe", "stream": ""}, {}, ["released"]).settings
    own = {name: value for name, value in released.items() if name.startswith("method.") and ".lr_" not in name}
    found = resolved(table, table.stream, embedded_settings(table.stream))[row.name].settings
    assert {name: found[name] for name in own} == own


@pytest.mark.parametrize("stream", ["shapes-5", "msrvtt-10"])
def test_released_rows_have_our_and_the_authors_recipe(stream):
    table = load_preset(ORIGINALS)
    theirs = {row.method: row for row in table.rows if row.presets}
    ours = {row.method: row for row in table.rows if not row.presets}
    of_paper = {row.method for row in load_preset("ctvr-table1").rows}
    assert set(theirs) == {name for name in of_paper if {"original", "released"} & set(presets_of(name))}
    assert set(ours) - set(theirs) == {"zero_shot"}
    settings = embedded_settings(stream) if stream in RENDERED else MSRVTT_SETTINGS
    made = resolved(table, stream, settings)
    for method, row in theirs.items():
        recipe = presets_of(method)[row.presets[0]]
        allowed = set(table.settings_of(row, [stream]))
        found = made[row.name].settings
        wrong = {
            k: (v, found.get(k)) for k, v in recipe.items() if k not in allowed and as_text(found[k]) != as_text(v)
        }
        assert not wrong, row.name
        assert found != made[ours[method].name].settings
        if stream == "shapes-5":  # it can be built there
            make_method(made[row.name], load_clip(made[row.name].backbone))
    assert made["clip4clip:original"].data.sampling == ("segments" if stream == "shapes-5" else "one_per_second")


def test_a_word_is_a_table_by_its_name_or_as_a_file():
    assert names_table("ctvr-table1")
    assert names_table("folder/mine.json")
    assert not names_table("released")
    assert not names_table("")


def test_only_a_table_of_the_package_has_a_name(tmp_path, monkeypatch):
    """A file of the user with the same name gets neither the paper's columns nor its printed rows."""
    shipped = load_preset("efficient-continual")
    assert shipped.name == "efficient-continual"
    assert columns_of("efficient-continual") == shipped.columns != ()
    file = tmp_path / "efficient-continual.json"
    file.write_text((FOLDER / file.name).read_text(encoding="utf-8"), encoding="utf-8")
    assert load_preset(str(file)) == replace(shipped, name="")
    monkeypatch.chdir(tmp_path)
    assert load_preset(file.name).name == ""
    assert columns_of("mine") == columns_of(str(file)) == ()
    assert not names_table("released")


def test_some_rows_of_a_table_keep_its_order():
    preset = load_preset("ctvr-table1")
    assert [row.name for row in preset.only(["lwf", "zero_shot"]).rows] == ["zero_shot", "lwf"]
    assert preset.only([]) == preset
    preset = load_preset("camoe-table7")
    assert [row.name for row in preset.only(["camoe:dsl", "entity", "camoe"]).rows] == ["camoe", "camoe:dsl,entity"]


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


def test_stream_settings_override_row_and_table_settings():
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


BROKEN: dict[str, tuple[object, str]] = {  # id -> data of a file, or its text; a part of what is said
    "a list": ([], "is not a table. Use an object with title"),
    "rows are none": ({**GOOD, "rows": {}}, "is not a table"),
    "no row": ({**GOOD, "rows": []}, "rows: is empty"),
    "a row twice": ({**GOOD, "rows": ["lwf", "lwf"]}, "lwf is listed 2 times"),
    "a number": ({**GOOD, "rows": [3]}, "rows[1]: is 3. Use a method's name"),
    "a key of a row": ({**GOOD, "rows": [{"nam": "lwf"}]}, "rows[1].nam: no such setting. Use rows[1].name=lwf."),
    "searched": ({**GOOD, "rows": [{"name": "lwf", "searched": "perhaps"}]}, "rows[1].searched: is not"),
    "protocol": ({**GOOD, "protocol": "other"}, "protocol: is not one of"),
    "a key": ({**GOOD, "titel": "x"}, "titel: no such setting. Use title=x."),
    "no rows": ({"title": "x"}, "is required"),
    "no title": ({**GOOD, "title": ""}, "title: is empty"),
    "no JSON": ("{", ""),
}


@pytest.mark.wording
@pytest.mark.parametrize(("data", "said"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_breaks_the_format_is_refused_in_one_line(tmp_path: Path, data, said):
    file, is_text = tmp_path / "mine.json", isinstance(data, str)
    file.write_text(data if is_text else json.dumps(data))
    refused(lambda: load_preset(str(file)), said, where=str(file) if is_text else file.name)


TWICE = {"name": "camoe:dsl", "presets": ["entity"]}
VARY: list[object] = [[], {"method.beta": []}, {"method.beta": 1}]
WRONG: dict[str, tuple[Callable[[], object], str, str]] = {  # id -> call, where, a part of what is said
    "name": (lambda: load_preset("ctvr-table"), "--preset", "Did you mean 'ctvr-table1'?"),
    "row": (lambda: load_preset("camoe-table7").only(["camoe:entity", "dsl"]), "--rows", "row 'dsl'"),
    "presets twice": (lambda: parse_preset({**GOOD, "rows": [TWICE]}), "rows[1]", "also lists presets"),
    **{f"vary {each}": (partial(parse_preset, {**GOOD, "vary": each}), "vary", "an object of lists") for each in VARY},
}


@pytest.mark.wording
@pytest.mark.parametrize(("call", "where", "said"), WRONG.values(), ids=WRONG)
def test_what_no_table_can_be_made_of_is_refused_in_one_line(call, where, said):
    refused(call, said, where=where)


SETTINGS = {
    "msrvtt-10": MSRVTT_SETTINGS,
    "msrvtt-20": MSRVTT_SETTINGS,
    "actnet-10": ACTNET_SETTINGS,
    "actnet-20": ACTNET_SETTINGS,
    "cvlm": CVLM_SETTINGS,
    **dict.fromkeys(("msrvtt", "activitynet", "didemo", "lsmdc", "msvd"), ALONE),
}

MAIN = {"ctvr-table1": ("msrvtt-10", "msrvtt-20", "actnet-10", "actnet-20"), "cvlm-table1": ("cvlm",)}


def resolved(table, stream, settings):
    """Return row -> its experiment on a stream that recommends `settings`."""
    found = {}
    for row in table.rows:
        if row.is_for([stream]):
            full = {**table.settings_of(row, [stream]), "method": row.method, "stream": stream}
            presets = with_recipe(row.method, row.presets, settings)
            found[row.name] = resolve(
                {**full, **clamp_values(full, table.varies, settings, presets)}, settings, presets
            )
    return found


@pytest.mark.parametrize("name", preset_names())
def test_every_row_is_its_own_run_on_embedded_and_published_streams(name):
    table = load_preset(name)
    published = {stream: rows[0].recommended for stream in SETTINGS if (rows := published_rows(stream, name))}
    named = MAIN.get(name, published)
    streams = {stream: SETTINGS[stream] for stream in named} | {table.stream: embedded_settings(table.stream)}
    for stream, settings in streams.items():
        rows = resolved(table, stream, settings)
        unlike = {json.dumps(each.settings, default=str) for each in rows.values()}
        assert len(unlike) >= len(rows) - len(table.varies), stream  # each setting may list the recommended value once
        assert set(rows) == {row.name for row in table.rows} or stream == table.stream or name == "tempme-table1"
        if stream in published:  # what the numbers say of their stream is what an import makes of it
            again = resolved(table, stream, published[stream])
            for row, each in rows.items():
                assert {**each.settings, "data.image_size": None} == again[row].settings, row


@pytest.mark.parametrize("name", [name for name in published_tables() if name.startswith("tempme")])
def test_the_schedules_of_every_row_fit_the_embedded_backbone(name):
    table, settings = load_preset(name), embedded_settings("shapes-5")
    for row, experiment in resolved(table, "shapes-5", settings).items():
        method = make_method(experiment, load_clip(experiment.backbone))
        if row == "ToMe, full fine-tuning":
            assert {group["name"] for group in method.param_groups()} == {"clip"}
            assert method.reducer.steps[0].intra > 0
            assert not any(step.group > 1 for step in method.reducer.steps)


def test_varied_table_has_a_row_for_each_value():
    first = {"name": "structalign", "settings": {"method.lambda1": 0.3}, "notes": ["a note"]}
    vary = {"method.lambda1": [0.1, 1.0], "method.reducer.clip_blocks": [[6, 8], [4, 6]]}
    data = {"title": "t", "protocol": "any", "stream": "shapes-5", "rows": [first, "zero_shot"], "vary": vary}
    preset = parse_preset(data)
    assert [row.name for row in preset.rows[2:]] == [
        *("method.lambda1=0.1", "method.lambda1=1.0"),
        *("method.reducer.clip_blocks=6,8", "method.reducer.clip_blocks=4,6"),
    ]
    assert [row.settings["method.lambda1"] for row in preset.rows[2:]] == [0.1, 1.0, 0.3, 0.3]
    assert {(row.method, row.notes, row.searched) for row in preset.rows[2:]} == {("structalign", ("a note",), False)}
    assert preset.varies == tuple(vary)
    assert parse_preset(json.loads(json.dumps(asdict(preset)))) == preset  # a resumed table has them once
