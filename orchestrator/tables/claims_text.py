"""Claims and their verdicts as text for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ctvr.orchestrator.tables.claims import Result, Verdict, read
from ctvr.orchestrator.tables.table import MISSING

ORDER: tuple[Verdict, ...] = ("holds", "does not", "undecided", "not run")
RULE = (
    "Improvement: difference between the two rows, positive in the claimed direction, with its 95 % interval over test "
    "videos and seeds (columns other than R@1: over seeds only). Holds: the interval lies above 0, or above minus the "
    "margin. Does not: it lies at or below that bound, or below the smallest effect that the paper asserts. Undecided: "
    "all other cases. Could be seen: the effect that this comparison detects in 4 of 5 cases. Intervals are not "
    "corrected for the number of claims: of 20 claims without any effect, one interval on average excludes 0."
)
TITLES = ("claim", "paper", "says", "asserts", "improvement", "could be seen", "verdict")


def list_text() -> str:
    """Return all claims as text for a terminal."""
    papers, claims = read()
    lines = []
    for paper, title in papers.items():
        if own := [claim for claim in claims if claim.paper == paper]:
            lines.append(title)
            lines += [f"  {each.claim:<32}  {each.place}: {each.says} ({each.asserted})" for each in own]
    return "\n".join([*lines, "", f"{len(claims)} claims. Test one: ctvr reproduce claims --only {claims[0].claim}"])


def counts(results: Sequence[Result]) -> str:
    """Return how many claims have each verdict."""
    found = Counter(result.verdict for result in results)
    named = [f"{found[verdict]} {verdict}" for verdict in ORDER]
    return f"{len(results)} claim{'s' * (len(results) != 1)}: {', '.join(named)}"


def to_text(results: Sequence[Result], stream: str) -> str:
    """Format the verdicts for a terminal, grouped by their kind."""
    lines = [f"claims on {stream}", ""]
    for result in sorted(results, key=lambda result: ORDER.index(result.verdict)):
        line = f"{_verdict(result):<28}  {result.claim.claim:<32}  {_size(result)}"
        lines.append(line + f"; could be seen: {_number(result.detectable)}" * (result.verdict == "undecided"))
    return "\n".join([*lines, "", counts(results)])


def to_markdown(results: Sequence[Result], stream: str) -> str:
    """Return the verdicts as a Markdown table in the order of the claims."""
    papers = read()[0]
    lines = [f"### Claims on {stream}", "", _line(TITLES), _line([":--"] * len(TITLES))]
    for result in results:
        claim = result.claim
        paper = papers[claim.paper].partition(" (")[0]
        lines.append(
            _line(
                [
                    f"`{claim.claim}`",
                    f"{paper}, {claim.place}",
                    claim.says,
                    claim.asserted,
                    _size(result),
                    _number(result.detectable),
                    _verdict(result),
                ]
            )
        )
    return "\n".join([*lines, "", f"{counts(results)}.", "", RULE, ""])


def to_json(results: Sequence[Result], stream: str) -> str:
    """Return the verdicts as JSON; an unknown number is null."""
    return json.dumps({"stream": stream, "claims": [_known(asdict(each)) for each in results]}, indent=1) + "\n"


def _verdict(result: Result) -> str:
    return f"{result.verdict} ({result.note})" if result.note else str(result.verdict)


def _size(result: Result) -> str:
    """Return the improvement with its interval, or the ratio of two costs."""
    if result.verdict == "not run":
        return MISSING
    if result.claim.at_most:
        return f"{result.improvement.value:.2f} x"
    return str(result.improvement)


def _number(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else MISSING


def _known(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _known(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_known(each) for each in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
