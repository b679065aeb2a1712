"""Headline claims of the papers as data, and the verdict on each from a comparison of two rows.

The data are in `claims.json` in this folder:

    {"papers": {"der": "DER (...)"},                                  (besides those of paper_items.json)
     "claims": [{"claim": "framefusion-ffa", "paper": "framefusion", "place": "Table 2", "says": "FFA adds R@1",
                 "table": "ctvr-table2", "row": "framefusion_moe", "than": "framefusion_moe:no-ffa",
                 "column": "r1", "better": "higher", "effect": 1.5}]}

`row` and `than` are rows of the table preset `table`. `effect` is the smallest effect that the paper asserts: the
smallest printed difference between both rows over its data sets. It is 0 if the paper asserts only a direction, or if
one of its data sets contradicts the claim. Instead of an effect a claim may have `margin` (the row is worse by less
than that) or `at_most` (a ratio of two costs).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.tables.paper_items import read as read_items
from ctvr.orchestrator.tables.paper_numbers import benchmarks
from ctvr.orchestrator.tables.presets import TablePreset, TableRow, load_preset
from ctvr.orchestrator.tables.table import Difference
from ctvr.orchestrator.tables.table_columns import OF, PRINTED

FILE = Path(__file__).parent / "claims.json"
STREAM = "worlds-5"  # default stream for testing the claims
SEEDS = 3
IMAGE_TABLE = "bmu-table4"  # its rows train on images without captions

Verdict = Literal["holds", "does not", "undecided", "not run"]
MICD = {"micd_text": "train/micd_text", "micd_video": "train/micd_video"}
UNKNOWN = Difference()
FORGETTING = {"ctvr": "bwf", "cvlm": "fr"}  # protocol -> the column of "forgetting" of captions


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim: two rows of a table, a column, and the direction and size of the difference."""

    claim: str
    paper: str
    place: str  # table or figure in the paper
    says: str
    table: str  # table preset with both rows
    row: str
    than: str
    column: str  # r1, forgetting, rsum, gmacs, twin, ...
    better: Literal["higher", "lower"]
    effect: float = 0.0  # effect in points
    margin: float = 0.0  # points by which the row may be worse; 0: the claim is a difference
    at_most: float = 0.0  # largest ratio of the row's cost to the other's; 0: no ratio is claimed

    @property
    def bound(self) -> float:
        """Return the improvement that the interval must exceed for the claim to hold."""
        return -self.margin if self.margin else 0.0

    @property
    def asserted(self) -> str:
        """Return the asserted effect as text."""
        if self.at_most:
            return f"at most {self.at_most:g} x"
        if self.margin:
            return f"worse by at most {self.margin:g}"
        return f"{self.better} by {self.effect:g}" if self.effect else self.better


@dataclass(frozen=True)
class Result:
    """The verdict on a claim, with its improvement: positive if the difference has the claimed direction."""

    claim: Claim
    verdict: Verdict
    improvement: Difference = UNKNOWN  # of an `at_most` claim: the ratio of both costs
    detectable: float = math.nan  # effect that the comparison detects in 4 of 5 cases
    means: tuple[float, float] = (math.nan, math.nan)  # mean of the row, and of the other one
    seeds: int = 0
    why: str = ""  # reason why it is not run

    @property
    def note(self) -> str:
        """Return the qualification of a verdict; empty if it needs none."""
        if self.verdict == "holds" and not self.claim.at_most and self.improvement.high < self.claim.effect:
            return "smaller than asserted"
        return self.why


@cache
def read() -> tuple[dict[str, str], tuple[Claim, ...]]:
    """Return the papers by their short names, and all claims in the order of the file."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return {**read_items()[0], **data["papers"]}, tuple(Claim(**each) for each in data["claims"])


def chosen(names: Sequence[str], images: bool = False) -> list[Claim]:
    """Return the claims with these names (default: all) that a stream of captions, or of images, can test.

    Raises:
        ConfigError: for an unknown name, or a claim for the other kind of stream.
    """
    claims = {claim.claim: claim for claim in read()[1]}
    for name in names:
        if name not in claims:
            raise ConfigError(
                f"--only: claim {name!r} does not exist.{suggest(name, list(claims))} All: ctvr reproduce claims "
                "--list."
            )
        if needs_images(claims[name]) is not images:
            stream = load_preset(IMAGE_TABLE).stream if needs_images(claims[name]) else STREAM
            raise ConfigError(f"--only {name}: this stream cannot test it. Add --stream {stream}.")
    return [each for each in claims.values() if needs_images(each) is images and (not names or each.claim in names)]


def has_images(stream: str) -> bool:
    """Report whether a stream of this name has images without captions."""
    return stream.partition("@")[0] in {load_preset(IMAGE_TABLE).stream, *benchmarks(IMAGE_TABLE)}


def needs_images(claim: Claim) -> bool:
    """Report whether a claim is about images without captions."""
    return claim.table == IMAGE_TABLE


def preset_of(claims: Sequence[Claim], stream: str = STREAM) -> TablePreset:
    """Return one table with all rows that the claims compare; each row keeps the settings of its original table."""
    rows: dict[str, TableRow] = {}
    for claim in claims:
        for name in (claim.row, claim.than):
            row = _row(claim.table, name)
            if not any(_runs(row) == _runs(each) for each in rows.values()):
                label = name if name not in rows else f"{name} ({claim.table})"
                rows[label] = replace(row, name=label)
    title = f"rows of {len(claims)} claim{'s' * (len(claims) != 1)} of the papers"
    return TablePreset(
        title=title,
        protocol="any",
        stream=stream,
        rows=tuple(rows.values()),
        seeds=SEEDS,
        search={"trials": 0},
        claims=tuple(claim.claim for claim in claims),
    )


def names_in(preset: TablePreset, claim: Claim) -> tuple[str, str]:
    """Return the names of a claim's two rows in a table of `preset_of`."""
    of = [_runs(row) for row in preset.rows]
    row, than = (preset.rows[of.index(_runs(_row(claim.table, name)))].name for name in (claim.row, claim.than))
    return row, than


def _row(table: str, name: str) -> TableRow:
    """Return a row, without search, with its table's settings merged into its own, which take precedence."""
    preset = load_preset(table)
    row = next(row for row in preset.rows if row.name == name)
    on = {key: {k: v for k, v in values.items() if k not in row.settings} for key, values in preset.on.items()}
    for key, values in row.on.items():
        on[key] = {**on.get(key, {}), **values}
    return replace(row, settings={**preset.settings, **row.settings}, on=on, searched=False)


def _runs(row: TableRow) -> str:
    """Return the part of a row that determines its runs, without name and notes."""
    parts = dataclasses.asdict(row)
    return json.dumps([parts[key] for key in ("method", "presets", "settings", "on", "only")], sort_keys=True)


def metric_of(column: str, protocol: str) -> str:
    """Return the MLflow metric of a claim's column on a stream of this protocol.

    Raises:
        KeyError: if the protocol has no such column.
    """
    printed = {key: metric for key, (_, metric) in PRINTED.items()}
    known = {**MICD, **printed, **OF[protocol].names}
    return known[FORGETTING.get(protocol, column) if column == "forgetting" else column]


def judge(claim: Claim, difference: Difference, detectable: float, means: tuple[float, float], seeds: int) -> Result:
    """Return the verdict on a difference, the metric of `row` minus that of `than`.

    A claim holds if the 95 % interval of the improvement lies above 0 (with a margin: above minus the margin). It does
    not hold if the interval lies at or below that, or below the smallest effect that the paper asserts. Otherwise these
    runs do not decide it.
    """
    if claim.at_most:
        ratio = means[0] / means[1] if means[1] else math.nan
        verdict: Verdict = "holds" if ratio <= claim.at_most else "does not"
        verdict = verdict if math.isfinite(ratio) else "undecided"
        return Result(claim, verdict, Difference(ratio, ratio, ratio, math.nan), math.nan, means, seeds)
    improvement = difference if claim.better == "higher" else difference.turned()
    verdict = "undecided"
    if improvement.low > claim.bound:
        verdict = "holds"
    elif improvement.high <= claim.bound or improvement.high < claim.effect:
        verdict = "does not"
    return Result(claim, verdict, improvement, detectable, means, seeds)
