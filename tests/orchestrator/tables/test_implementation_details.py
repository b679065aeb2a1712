"""The recipes resolve to the implementation details that the five papers print, or a deviation has its reason."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ctvr.methods.layers.reduction.reducers import tempme_steps
from ctvr.methods.tempme import TempMeConfig
from ctvr.orchestrator.config import build, select_prefix
from ctvr.orchestrator.importers.ctvr import ACTNET_SETTINGS, MSRVTT_SETTINGS
from ctvr.orchestrator.importers.cvlm import ALONE, CVLM_SETTINGS
from ctvr.orchestrator.learning.resolve import resolve, with_recipe
from ctvr.orchestrator.tables.paper_numbers import published_tables
from ctvr.orchestrator.tables.presets import load_preset

STREAMS: dict[str, dict[str, Any]] = {"msrvtt": MSRVTT_SETTINGS, "actnet": ACTNET_SETTINGS, "cvlm": CVLM_SETTINGS}
BLOCKS = 12  # of a ViT-B
DETAILS = json.loads((Path(__file__).parent / "implementation_details.json").read_text())


@cache
def resolved(method: str, presets: tuple[str, ...], stream: str, table: str) -> dict[str, Any]:
    """The flat settings of a run: of a row of a table on a stream, or of a method under a recipe."""
    words: dict[str, Any] = {"method": method, "stream": stream or "s"}
    settings = STREAMS.get(stream, ALONE if stream else {})
    if table:
        preset = load_preset(table)
        row = next(row for row in preset.rows if row.name == method)
        words, presets = {**words, **preset.settings_of(row, [stream]), "method": row.method}, row.presets
    return resolve(words, settings, with_recipe(words["method"], presets, settings)).settings


def of(detail: dict[str, Any]) -> Any:
    if "method" not in detail:
        return getattr(load_preset(detail["table"]), detail["setting"])
    presets, name = tuple(detail.get("presets", ())), detail["setting"]
    settings = resolved(detail["method"], presets, detail.get("stream", ""), detail.get("table", ""))
    if "tokens" in detail:  # a setting that is empty leaves it to the tower's size: the printed one merges alike
        own = build(TempMeConfig, select_prefix(settings, "method"), "method")
        value = detail["value"]
        given = {**select_prefix(settings, "method"), name.partition(".")[2]: value}
        printed = build(TempMeConfig, given, "method")
        if tempme_steps(own.reducer, BLOCKS, detail["tokens"]) == tempme_steps(
            printed.reducer, BLOCKS, detail["tokens"]
        ):
            return value
    found = settings[name]
    return list(found) if isinstance(found, tuple) else found


@pytest.mark.parametrize("paper", sorted({detail["paper"] for detail in DETAILS}))
def test_what_a_paper_prints_is_what_its_recipes_resolve_to(paper):
    own = [detail for detail in DETAILS if detail["paper"] == paper]
    wrong = [(d["place"], d["words"], d["setting"], of(d)) for d in own if (of(d) == d["value"]) == ("departs" in d)]
    assert wrong == []


def test_every_departure_says_why():
    assert all(detail["departs"].strip() for detail in DETAILS if "departs" in detail)


@pytest.mark.parametrize("stream", ["msrvtt", "activitynet", "didemo", "lsmdc", "msvd"])
def test_clip4clip_has_one_recipe_on_a_benchmark_whatever_the_table(stream):
    """Frames, and words of films of minutes, are the tables' own, as the papers print them."""
    names = ("data.batch_size", "optim.epochs", "method.frame_norm", "data.max_tokens")
    recipes = {}
    for table, preset in {name: load_preset(name) for name in published_tables()}.items():
        for row in preset.rows:
            if row.name == "clip4clip" and stream in {*preset.on, *row.on}:
                found = resolved("clip4clip", (), stream, table)
                recipes[table] = [found[name] for name in names]
    assert recipes
    assert len({json.dumps(recipe) for recipe in recipes.values()}) == 1, recipes
