"""The rows of the papers' tables resolve to the settings that the five papers print, or a deviation gives its reason.

`implementation_details.json` has one line for each printed statement: its words and place, the tables and rows for
which the paper makes it ("*": all that train and are the paper's, except those in `but`), the streams (missing: those
of the printed table), the settings (`method.*` is `base.*` of a wrapped retriever) and their value. `departs` is the
reason for a deviation. `recipes` are presets that no table names (`method:preset`). `benchmark` lines hold sizes:
training and searched videos, or classes and classes of a task.
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ctvr.methods.layers.reduction.reducers import tempme_steps
from ctvr.methods.tempme import TempMeConfig
from ctvr.orchestrator.config import build, select_prefix
from ctvr.orchestrator.importers.ctvr import ACTNET_SETTINGS, MSRVTT_SETTINGS
from ctvr.orchestrator.importers.cvlm import ALONE, CVLM_SETTINGS, PUBLISHED
from ctvr.orchestrator.importers.images import BENCHMARKS
from ctvr.orchestrator.settings.presets import with_recipe
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.tables.paper_numbers import benchmarks, published_tables
from ctvr.orchestrator.tables.presets import TableRow, load_preset
from ctvr.orchestrator.tables.unpublished_settings import unpublished

STREAMS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("msrvtt-10", "msrvtt-20"), MSRVTT_SETTINGS),
    **dict.fromkeys(("actnet-10", "actnet-20"), ACTNET_SETTINGS),
    "cvlm": CVLM_SETTINGS,
}  # all others: one data set alone
SIZES: dict[str, tuple[int | None, int]] = {
    **PUBLISHED,
    **{name: (each.classes, each.per_task) for name, each in BENCHMARKS.items()},
}
# CAMoE specifies nothing for these rows, and BMU-MoCo's Table 4 nothing for any row
NOT_PRINTED = {*product(map("camoe-table{}".format, (1, 2, 3, 6)), ("clip4clip", "CLIP4Clip with DSL"))}
preset_named = cache(load_preset)
BLOCKS = 12  # of a ViT-B
DETAILS = json.loads((Path(__file__).parent / "implementation_details.json").read_text())


@cache
def resolved(table: str, name: str, stream: str) -> dict[str, Any]:
    """Return the flat settings of a row of a table on a stream; without a table, of `method:recipe` alone."""
    preset = preset_named(table) if table else None
    row = next(row for row in preset.rows if row.name == name) if preset else TableRow(name=name)
    settings = STREAMS.get(stream, ALONE if preset else {})
    words = {"stream": stream, **(preset.settings_of(row, [stream]) if preset else {}), "method": row.method}
    return resolve(words, settings, with_recipe(row.method, row.presets, settings)).settings


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def is_the_papers(row: TableRow) -> bool:
    """Return whether its paper trained the row, unlike zero-shot CLIP and our controls."""
    return not row.control and "zero_shot" not in (row.method, row.settings.get("method.base"))


def places(detail: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield each table, row, stream and setting that a detail is about."""
    if "recipes" in detail:
        yield from product([""], detail["recipes"], [detail.get("stream", "s")], listed(detail["setting"]))
        return
    for table in listed(detail["table"]):
        preset = preset_named(table)
        streams = listed(detail.get("stream", list(benchmarks(table)) or ["msrvtt"]))
        for row, stream, setting in product(preset.rows, streams, listed(detail["setting"])):
            wanted = (
                row.name in detail["rows"]
                if detail["rows"] != "*"
                else is_the_papers(row) and row.name not in detail.get("but", ())
            )
            if wanted and row.is_for([stream]):
                yield table, row.name, stream, setting


def of(detail: dict[str, Any], table: str, row: str, stream: str, setting: str) -> Any:
    """Return the value of a setting in the printed form."""
    settings = resolved(table, row, stream)
    if "tokens" in detail:  # a setting that is empty leaves it to the tower's size: the printed one merges alike
        own = build(TempMeConfig, select_prefix(settings, "method"), "method")
        given = {**select_prefix(settings, "method"), setting.partition(".")[2]: detail["value"]}
        printed = build(TempMeConfig, given, "method")
        if tempme_steps(own.reducer, BLOCKS, detail["tokens"]) == tempme_steps(
            printed.reducer, BLOCKS, detail["tokens"]
        ):
            return detail["value"]
    found = settings[setting if setting in settings else setting.replace("method.", "base.", 1)]
    return list(found) if isinstance(found, tuple) else found


def found(detail: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a detail is compared with: place -> value."""
    if "benchmark" in detail:
        return {detail["benchmark"]: list(SIZES[detail["benchmark"]])}
    if not {"rows", "recipes"} & detail.keys():
        return {table: getattr(preset_named(table), detail["setting"]) for table in listed(detail["table"])}
    return {" / ".join(place): of(detail, *place) for place in places(detail)}


@pytest.mark.parametrize("paper", sorted({detail["paper"] for detail in DETAILS}))
def test_recipes_resolve_to_the_values_that_papers_print(paper):
    own = [detail for detail in DETAILS if detail["paper"] == paper]
    wrong = [
        (detail["place"], detail["words"], place, value)
        for detail in own
        for place, value in found(detail).items()
        if (value == detail["value"]) == ("departs" in detail)
    ]
    assert wrong == []


def test_no_footnote_calls_a_printed_recipe_unpublished():
    """Settings of a method may be its original's, about which the printing paper says nothing."""
    loop = [each for each in DETAILS if "rows" in each and str(each["setting"]).startswith(("optim.", "data."))]
    for detail in loop:
        for table, name, _, setting in places(detail):
            row = next(row for row in preset_named(table).rows if row.name == name)
            assert setting not in unpublished(row.method), (detail["words"], table, name)


@pytest.mark.parametrize("detail", [each for each in DETAILS if "rows" in each], ids=lambda each: each["words"])
def test_a_detail_is_about_rows_that_exist(detail):
    names = {row.name for table in listed(detail["table"]) for row in preset_named(table).rows}
    assert list(places(detail))
    assert {*(detail["rows"] if detail["rows"] != "*" else ()), *detail.get("but", ())} <= names


def test_every_row_that_a_paper_trained_has_details():
    told = {place[:2] for detail in DETAILS if "rows" in detail for place in places(detail)}
    for table in {*published_tables(), "ctvr-table1", "cvlm-table1"} - {"bmu-table4"}:
        trained = {(table, row.name) for row in preset_named(table).rows if is_the_papers(row)}
        assert trained - told - NOT_PRINTED == set()


def test_every_deviation_has_a_reason():
    assert all(detail["departs"].strip() for detail in DETAILS if "departs" in detail)


@pytest.mark.parametrize("stream", ["msrvtt", "activitynet", "didemo", "lsmdc", "msvd"])
def test_clip4clip_has_one_recipe_on_a_benchmark_whatever_the_table(stream):
    """Only the number of frames, and of words for long films, depends on the table, as the papers print them."""
    names = ("data.batch_size", "optim.epochs", "method.frame_norm", "data.max_tokens")
    recipes = {}
    for table, preset in {name: preset_named(name) for name in published_tables()}.items():
        for row in preset.rows:
            if row.name == "clip4clip" and stream in {*preset.on, *row.on}:
                recipes[table] = [resolved(table, "clip4clip", stream)[name] for name in names]
    assert recipes
    assert len({json.dumps(recipe) for recipe in recipes.values()}) == 1, recipes
