"""Headline claims of the papers as data, and the verdict on each from a comparison of two rows.

The data are in `claims.json` in this folder:

    {"papers": {"der": "DER (...)"},                                  (in addition to paper_items.json)
     "claims": [{"claim": "framefusion-ffa", "paper": "framefusion", "place": "Table 2", "says": "FFA adds R@1",
                 "table": "ctvr-table2", "row": "framefusion_moe", "than": "framefusion_moe:no-ffa",
                 "column": "r1", "better": "higher", "effect": 9.14}],
     "causes": [{"claims": ["tempme-gmacs"], "cause": "only two frames ...", "settings": {"data.num_frames": "4"}}]}

`row` and `than` are rows of the table preset `table`; `than` is the base row. `effect` is the smallest effect that the
paper asserts, in percent of the base row's value (for forgetting: of the base row's R@1). It is the smallest printed
difference between the two rows among the data sets of the paper. It is 0 if the paper asserts only a direction, or if
one of the data sets contradicts the claim. Instead of `effect`, a claim may have `margin` (the row is worse by less
than that percentage) or `at_most` (the largest ratio of the row's cost to the base row's cost).

`settings` (and `stream`, if given) remove a cause. The claim is tested again with these settings. The cause is printed
only if that test was run and has another verdict.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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

Verdict = Literal["holds", "smaller than asserted", "contradicted", "undecided", "not judged", "not run"]
FAILED: tuple[Verdict, ...] = ("smaller than asserted", "contradicted")  # verdicts that need an explanation
MICD = {"micd_text": "train/micd_text", "micd_video": "train/micd_video"}
UNKNOWN = Difference()
FORGETTING = {"ctvr": "bwf", "cvlm": "fr"}  # protocol with captions -> the column that measures "forgetting"
MAIN = {"ctvr": "r1", "cvlm": "r1", "ucl": "accuracy"}  # protocol -> the column to which forgetting is relative


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper: that `row` differs from `than` in a column, in a direction and by a size."""

    claim: str
    paper: str
    place: str  # table or figure in the paper
    says: str
    table: str  # table preset with both rows
    row: str
    than: str
    column: str  # r1, forgetting, rsum, gmacs, twin, ...
    better: Literal["higher", "lower"]
    effect: float = 0.0  # percent of the base row's value
    margin: float = 0.0  # percent of the base row's value by which the row may be worse; 0: no margin
    at_most: float = 0.0  # largest ratio of the row's cost to the base row's; 0: no ratio is claimed

    @property
    def asserted(self) -> str:
        """Return the asserted effect as text, for example `higher by 9.14 %`."""
        if self.at_most:
            return f"at most {self.at_most:g} x"
        if self.margin:
            return f"worse by at most {self.margin:g} %"
        return f"{self.better} by {self.effect:g} %" if self.effect else self.better


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A possible cause of failed claims, and the settings that remove it."""

    claims: tuple[str, ...]
    cause: str
    settings: Mapping[str, str] = field(default_factory=dict)
    stream: str = ""  # stream without the cause; empty: the stream of the verdict


@dataclass(frozen=True)
class Result:
    """Result of the test of a claim. The improvement is positive if the difference has the claimed direction."""

    claim: Claim
    verdict: Verdict
    improvement: Difference = UNKNOWN  # for an `at_most` claim: the ratio of the two costs
    detectable: float = math.nan  # effect that the comparison detects in 4 of 5 cases
    means: tuple[float, float] = (math.nan, math.nan)  # mean of the row, and of the base row
    base: float = math.nan  # value of the base row to which the asserted effect is relative
    q: float = math.nan  # q-value (Benjamini and Hochberg) over all claims of the page
    seeds: int = 0
    why: str = ""  # reason why the claim is not judged or not run
    cause: str = ""  # cause of the verdict: a run without the cause has another verdict

    @property
    def asserted(self) -> float:
        """Return the asserted percentage of our base row's value, in the unit of the column, or 0 without an effect."""
        return self.claim.effect / 100 * self.base if self.claim.effect else 0.0

    @property
    def note(self) -> str:
        """Return the remark that is printed after a verdict, or "" if there is none."""
        if self.verdict == "smaller than asserted" and self.improvement.low > 0 and not self.claim.at_most:
            return "the direction holds"
        return self.why


@cache
def read() -> tuple[dict[str, str], tuple[Claim, ...]]:
    """Return the titles of the papers by short name, and all claims in the order of the file."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return {**read_items()[0], **data["papers"]}, tuple(Claim(**each) for each in data["claims"])


@cache
def read_causes() -> tuple[Cause, ...]:
    """Return the possible causes of failed claims, in the order of the file."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(Cause(**{**each, "claims": tuple(each["claims"])}) for each in data["causes"])


def chosen(names: Sequence[str], images: bool = False) -> list[Claim]:
    """Return the claims with these names (if none is given, all) that a stream with captions can test.

    If `images`, return the claims that a stream of images without captions can test.

    Raises:
        ConfigError: for an unknown name, or a claim for the other kind of stream.
    """
    claims = {claim.claim: claim for claim in read()[1]}
    for name in names:
        if name not in claims:
            raise ConfigError(
                f"claim {name!r} does not exist.{suggest(name, list(claims))} All: ctvr reproduce claims --list.",
                "--only",
            )
        if needs_images(claims[name]) is not images:
            stream = load_preset(IMAGE_TABLE).stream if needs_images(claims[name]) else STREAM
            raise ConfigError("this stream cannot test it", f"--only {name}", remedy=f"Add --stream {stream}.")
    return [each for each in claims.values() if needs_images(each) is images and (not names or each.claim in names)]


def has_images(stream: str) -> bool:
    """Report whether a stream of this name has images without captions."""
    return stream.partition("@")[0] in {load_preset(IMAGE_TABLE).stream, *benchmarks(IMAGE_TABLE)}


def needs_images(claim: Claim) -> bool:
    """Report whether only a stream of images without captions can test a claim."""
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
    """Return row `name` of a table preset, with the settings of the table merged in and without a search.

    Settings of the row take precedence over settings of the table.
    """
    preset = load_preset(table)
    row = next(row for row in preset.rows if row.name == name)
    on = {key: {k: v for k, v in values.items() if k not in row.settings} for key, values in preset.on.items()}
    for key, values in row.on.items():
        on[key] = {**on.get(key, {}), **values}
    return replace(row, settings={**preset.settings, **row.settings}, on=on, searched=False)


def _runs(row: TableRow) -> str:
    """Return, as JSON text, the part of a row that determines its runs: all except the name and the notes."""
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


def judge(
    claim: Claim, difference: Difference, detectable: float, means: tuple[float, float], base: float, seeds: int
) -> Result:
    """Return the verdict on a difference, the metric of `row` minus that of `than`.

    The 95 % interval of the improvement decides. If the interval is below 0 (with a margin: below minus the margin),
    the claim is contradicted. Otherwise, if it is below the asserted effect, the effect is smaller than asserted.
    Otherwise, if it is above 0 (above minus the margin), the claim holds. All other claims are undecided.

    Args:
        detectable: effect that the comparison detects in 4 of 5 cases.
        means: mean of `row` and of `than`.
        base: value of the base row to which the asserted effect is relative.
    """
    if claim.at_most:
        return _judge_ratio(claim, means, base, seeds)
    improvement = difference if claim.better == "higher" else difference.turned()
    found = Result(claim, "undecided", improvement, detectable, means, base, seeds=seeds)
    bound = -claim.margin / 100 * base if claim.margin else 0.0
    if improvement.high < bound:
        return replace(found, verdict="contradicted")
    if improvement.high < found.asserted or improvement.high <= bound:
        return replace(found, verdict="smaller than asserted")
    return replace(found, verdict="holds") if improvement.low > bound else found


def _judge_ratio(claim: Claim, means: tuple[float, float], base: float, seeds: int) -> Result:
    """Return the verdict on an `at_most` claim, whose ratio of two costs does not have an interval."""
    ratio = means[0] / means[1] if means[1] else math.nan
    verdict: Verdict = "undecided"
    if math.isfinite(ratio):
        verdict = "holds" if ratio <= claim.at_most else "smaller than asserted" if ratio < 1 else "contradicted"
    return Result(claim, verdict, Difference(ratio, ratio, ratio, math.nan), means=means, base=base, seeds=seeds)
