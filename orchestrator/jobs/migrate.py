"""Comparison of strategies for a switch of embedders, on a sample (`ctvr migrate`).

The common items are split at random into a sample and the measured items. Maps are fitted to four fifths of the sample,
and the kind of map is selected on the last fifth. The measured queries search the measured items. docs/migrate.md has
the rules.

Shapes: N measured items, Q queries, S pairs of a sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ctvr.orchestrator.console import format_duration, printable, say
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.migration.inputs import Queries, VectorSet, common_ids, read_queries, read_set
from ctvr.orchestrator.migration.maps import FeatureMap, is_script
from ctvr.orchestrator.migration.sample import (
    LEAST_QUERIES,
    LEAST_SAMPLE,
    SAMPLE,
    Sample,
    fit_both,
    item_sample,
    measured_queries,
    rows_of,
    split_ids,
)
from ctvr.orchestrator.migration.search import (
    ALL,
    BOTH,
    KS,
    STAY,
    Index,
    Measured,
    Way,
    count_hits,
    first_items,
    measure,
    predicted_loss,
)
from ctvr.orchestrator.migration.verdict import Row, Verdict, decide, make_rows, name_of
from ctvr.orchestrator.output_dir import check_creatable, nearest_name

SHARES = (5, 10, 25, 50)  # re-encoded shares of the items, in percent


@dataclass(frozen=True)
class MigrationConfig:
    """Options of `ctvr migrate`; the command's help describes them."""

    queries: Path | None = None
    sample: int | None = None
    measure: int = 1000
    seed: int = 0
    tolerance: float = 5.0
    rate: float | None = None
    out: Path | None = None
    runs: Path = Path("runs")

    def check(self) -> None:
        """Check the ranges of all options.

        Raises:
            ConfigError: for the first option out of range.
        """
        if self.sample is not None and self.sample < LEAST_SAMPLE:
            raise ConfigError(f"must be >= {LEAST_SAMPLE}", "--sample", self.sample, f"Use {SAMPLE}.")
        if self.measure < LEAST_QUERIES:
            raise ConfigError(f"must be >= {LEAST_QUERIES}", "--measure", self.measure, "Use 1000.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError("must be >= 0 and below 2^63", "--seed", self.seed, "Use 0.")
        if not 0 < self.tolerance < 100:
            raise ConfigError("must be > 0 and < 100 percent", "--tolerance", self.tolerance, "Use 5.")
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate > 0):
            raise ConfigError("must be a finite number > 0", "--rate", self.rate, "Use a number of items per second.")
        if self.out is not None:
            if self.out.suffix != ".safetensors" or self.out.is_dir():
                raise ConfigError("must be a file that ends in .safetensors", "--out", str(self.out), "Rename it.")
            script = self.out.with_suffix(".py")
            if script.exists() and not is_script(script):
                raise ConfigError(f"would replace {script}", "--out", str(self.out), "Use another name.")
            if not self.out.parent.is_dir():
                raise ConfigError(f"the folder {self.out.parent} does not exist", "--out", remedy="Create it.")


@dataclass(frozen=True)
class Migration:
    """Result of the comparison: metrics of each way to switch embedders, and the maps.

    Attributes:
        found: way -> values (Q, K) of K metrics for each query.
        group: (Q,) index of a query's group; queries of one group are not independent.
        rows: rows of the table.
        verdict: the recommended way, with its reasons.
        maps: way -> fitted map.
        selected: the ways that use a map of the selected kind.
        chosen: the way whose map is written.
        metrics: names of the K metrics.
        lines: lines of text on counts and conditions.
    """

    found: dict[Way, Tensor]
    group: Tensor
    rows: list[Row]
    verdict: Verdict
    maps: dict[Way, FeatureMap]
    selected: tuple[Way, ...]
    chosen: Way
    metrics: tuple[str, ...]
    lines: list[str]


def migrate(old_name: str, new_name: str, config: MigrationConfig) -> str:
    """Compare the ways to switch embedders, and write a map with a script that applies it.

    Return the table of the comparison and the recommended way.

    Args:
        old_name, new_name: files, folders or streams with vectors of the old and the new embedder (see `read_set`).
        config: the options.

    Raises:
        ConfigError: for invalid options or inputs, and if the map cannot be written.
    """
    config.check()
    check_creatable(config.runs, "--runs")
    torch.set_num_threads(1)  # the default of a run, so that results are equal on every machine
    old, new = read_set(old_name, config.runs), read_set(new_name, config.runs)
    result = compare(old, new, config)
    out = config.out or config.runs / "migrate" / f"{_stem(old_name)}--{_stem(new_name)}.safetensors"
    about = {"way": result.chosen[0], "kind": result.chosen[1], "old": old_name, "new": new_name}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        script = result.maps[result.chosen].write(out, {**about, "sampled_by_seed": str(config.seed)})
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror})", "--out", remedy="Use another file.") from error
    say(f"written: {out} ({name_of(result.chosen)}) and {script}, which applies it with numpy")
    lines = [*result.lines, "", *table(result, config.rate), "", *verdict_lines(result, config.tolerance)]
    return "\n".join(printable(line) for line in lines)


def compare(old: VectorSet, new: VectorSet, config: MigrationConfig) -> Migration:
    """Fit maps to a sample of the common items, and measure every way to switch on the other common items.

    Raises:
        ConfigError: if there are too few common items or queries, or --queries cannot be read.
    """
    ids = common_ids(old, new)
    past = read_queries(config.queries, old, new) if config.queries else None
    draw = np.random.default_rng(config.seed)
    sampled, measured = split_ids(ids, config.sample, draw)
    vectors = [torch.from_numpy(each.vectors) for each in (old, new)]
    index = Index(vectors[0], vectors[1], (rows_of(old, measured), rows_of(new, measured)))
    items = item_sample(old, new, sampled)
    queries, of_texts = measured_queries(old, new, sampled, measured, past, config.measure, draw)
    fitted, kinds = fit_both(items, of_texts)
    queries = replace(queries, query_maps=fitted.query_maps, index_maps=fitted.index_maps, rest=kinds["map index"])
    if queries.old is not None:
        pairs = ((queries.old, items.old), (queries.new, items.new))
        queries = replace(queries, spread=torch.stack([(q @ v.mT).std(dim=1) for q, v in pairs]))
    orders = _orders(index, items, queries, kinds["map queries"], past)
    masks = {(n, s): mask for n, order in orders.items() for s, mask in first_items(order, SHARES).items()}
    found = measure(index, replace(queries, first=masks))
    lines = _conditions(old, new, ids, items, of_texts, queries, len(index), list(orders))
    return _build_result(found, queries, tuple(kinds.items()), list(orders), len(old.places), config.tolerance, lines)


def _build_result(
    found: dict[Way, Tensor],
    queries: Measured,
    selected: tuple[Way, ...],
    orders: list[str],
    items: int,
    tolerance: float,
    lines: list[str],
) -> Migration:
    """Return the result with the rows in the order of the table, the verdict and the way whose map is written."""
    partial = [(name, str(share)) for share in SHARES for name in orders]
    metrics = tuple(f"R@{k}" for k in KS) if queries.has_targets else ("overlap@10",)
    verdict = decide(found, queries.group, [*selected, *partial], tolerance / 100, metrics[-1])
    maps: dict[Way, FeatureMap] = {("map queries", kind): each for kind, each in queries.query_maps.items()}
    maps |= {("map index", kind): each for kind, each in queries.index_maps.items()}
    found = {way: found[way] for way in (STAY, BOTH, *maps, *partial, ALL) if way in found}
    rows = make_rows(found, queries.group, items)
    chosen = verdict.way if verdict.way in maps else selected[1]
    if verdict.way in (STAY, BOTH, ALL):
        chosen = max(selected, key=lambda way: float(found[way][:, -1].mean()))
    return Migration(found, queries.group, rows, verdict, maps, selected, chosen, metrics, lines)


def _orders(index: Index, items: Sample, queries: Measured, kind: str, past: Queries | None) -> dict[str, Tensor]:
    """Return orders of re-encoding by name, (N,) item indices. Orders use new vectors of the sample only.

    Args:
        index: index of the measured items.
        items: sample of pairs of items.
        queries: measured queries, with their maps.
        kind: kind of the map that maps past queries to the old embedder.
        past: past queries for the order by traffic. If they are not captions, only half of them determine the order,
            because the other half is measured.
    """
    to_new = queries.index_maps[queries.rest]
    losses = 1 - (to_new.apply(items.checked_old) * items.checked_new).sum(dim=-1)
    found = {"age": torch.arange(len(index))}
    if past:
        mapped = queries.query_maps[kind].apply(torch.from_numpy(past.new))
        asked = mapped if past.old is None else torch.from_numpy(past.old)
        hits = count_hits(asked[:: 1 if queries.has_targets else 2], index)
        found["traffic"] = hits.argsort(descending=True, stable=True)
    found["predicted gain"] = predicted_loss(index, items.checked_old, losses).argsort(descending=True, stable=True)
    return found


# ------------------------------------------------------------------------------------------ text


def _conditions(
    old: VectorSet,
    new: VectorSet,
    ids: list[str],
    items: Sample,
    of_texts: Sample | None,
    queries: Measured,
    measured: int,
    orders: list[str],
) -> list[str]:
    only = [len(each.places) - len(ids) for each in (old, new)]
    widths = [each.vectors.shape[1] for each in (old, new)]
    what = "captions" if queries.has_targets else "items" if queries.old is not None else "vectors of --queries"
    truth = "search their own item" if queries.has_targets else "search the ten items nearest by the new embedder"
    kinds = f"{len(items.old)} pairs of items" + (f" and {len(of_texts.old)} of captions" if of_texts else "")
    lines = [
        f"old: {len(old.places)} items of width {widths[0]} ({old.name})",
        f"new: {len(new.places)} items of width {widths[1]} ({new.name})",
        f"common ids: {len(ids)}; only in old: {only[0]}; only in new: {only[1]}",
        f"maps are fitted to {kinds}; {len(items.checked_old)} other items select their kind (*)",
        f"measured on {measured} other items: {len(queries.new)} {what} {truth}",
        f"re-encode P %: the other items are mapped ({queries.rest}); both: z-scores of the two similarities are added",
    ]
    if "traffic" not in orders:
        lines.append("re-encoding by traffic is not measured: --queries is not given")
    if queries.old is None:
        lines.append("stay and both are not measured: --queries has no vectors of the old embedder")
    return lines


def table(result: Migration, rate: float | None) -> list[str]:
    """Format the rows as lines of a table; `*` marks the selected kinds of maps.

    Args:
        result: result of the comparison.
        rate: items per second that the new embedder encodes, for a column with the time; None omits the column.
    """
    heads = ["way", *(f"{name} (%)" for name in result.metrics), "kept (%)", "items to encode"]
    lines = [[*heads, "time"] if rate else heads]
    for row in result.rows:
        cells = [name_of(row.way) + " *" * (row.way in result.selected), *(each.shown() for each in row.metrics)]
        cells += ["100" if row.way == ALL else row.kept.shown(), str(row.items)]
        lines.append([*cells, format_duration(row.items / rate)] if rate else cells)
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]


def verdict_lines(result: Migration, tolerance: float) -> list[str]:
    """Format the verdict and its remarks."""
    verdict, metric = result.verdict, result.metrics[-1]
    row = next(row for row in result.rows if row.way == verdict.way)
    if verdict.word in ("stay", "both"):
        reason = f"re-encoding all loses more than {tolerance:g} % of the {metric} of staying"
    elif verdict.way == ALL:
        reason = f"no cheaper way keeps at least {100 - tolerance:g} % of its {metric}"
    else:
        reason = f"it keeps {row.kept.shown()} % of the {metric} of re-encoding all, at least {100 - tolerance:g} %"
    return [f"verdict: {verdict.word}: {name_of(verdict.way)}; {reason}", *verdict.remarks]


def _stem(name: str) -> str:
    return nearest_name(Path(name.replace("@", "-")).stem or "vectors")
