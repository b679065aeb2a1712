"""Claims and their verdicts as text for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

from ctvr.orchestrator.tables.claims import FAILED, Result, Verdict, read
from ctvr.orchestrator.tables.formats import markdown_line
from ctvr.orchestrator.tables.table import LEVEL, MISSING

ORDER: tuple[Verdict, ...] = get_args(Verdict)
RULE = (
    "Asserts: the effect in the paper, in percent of the base row's value (for forgetting: of its R@1), and the same "
    "percentage of our base row in points. Improvement: difference between the two rows, positive in the claimed "
    "direction, with its 95 % interval over test videos and seeds (columns other than R@1: over seeds only), p, and q "
    "over all claims of this page (Benjamini and Hochberg). For a cost, the improvement is its ratio to the cost of "
    "the base row. Holds: the interval lies above 0 (or, for a claim with a margin, above minus the margin). Smaller "
    "than asserted: the interval lies below the asserted effect, but not below 0. Contradicted: the interval lies "
    "below 0 (or below minus the margin). Undecided: all other cases. Not judged: R@1 of the base row cannot be "
    "distinguished from chance, or a row cannot forget by construction. Could be seen: the effect that this "
    "comparison detects in 4 of 5 cases. q is corrected for the number of claims; intervals are not."
)
TUNING = (
    "Every row has the recommended settings of its method for this stream. No row was tuned again for these claims. A "
    "table of the rows states the number of trials that chose their settings."
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
    """Return a line with the number of claims of each verdict, and of claims that hold with q < 0.05."""
    found = Counter(result.verdict for result in results)
    named = [f"{found[verdict]} {verdict}" for verdict in ORDER]
    sure = sum(result.verdict == "holds" and result.q < LEVEL for result in results)
    named[0] += f" ({sure} with q < {LEVEL:g})"
    return f"{len(results)} claim{'s' * (len(results) != 1)}: {', '.join(named)}"


def to_text(results: Sequence[Result], stream: str) -> str:
    """Return the verdicts as text for a terminal, sorted by verdict."""
    lines = [f"claims on {stream}", ""]
    for result in sorted(results, key=lambda result: ORDER.index(result.verdict)):
        line = f"{_verdict(result):<28}  {result.claim.claim:<32}  {_size(result)}"
        lines.append(line + f"; could be seen: {_number(result.detectable)}" * (result.verdict == "undecided"))
    return "\n".join([*lines, "", *_causes(results), counts(results)])


def to_markdown(results: Sequence[Result], stream: str) -> str:
    """Return the verdicts as a Markdown table in the order of the claims, then counts, rules and found causes."""
    papers = read()[0]
    lines = [f"### Claims on {stream}", "", markdown_line(TITLES), markdown_line([":--"] * len(TITLES))]
    for result in results:
        claim = result.claim
        paper = papers[claim.paper].partition(" (")[0]
        lines.append(
            markdown_line(
                [
                    f"`{claim.claim}`",
                    f"{paper}, {claim.place}",
                    claim.says,
                    _asserted(result),
                    _size(result),
                    _number(result.detectable),
                    _verdict(result),
                ]
            )
        )
    causes = [f"- {line}" for line in _causes(results)]
    return "\n".join([*lines, "", f"{counts(results)}.", "", RULE, "", TUNING, "", *causes, *[""] * bool(causes)])


def _causes(results: Sequence[Result]) -> list[str]:
    """Return a line for each failed claim with a found cause, and a line that lists the other failed claims.

    A cause is found if a run without it has another verdict.
    """
    failed = [result for result in results if result.verdict in FAILED]
    lines = [f"{result.claim.claim}: {result.cause}" for result in failed if result.cause]
    rest = [result.claim.claim for result in failed if not result.cause]
    said = "no cause was found, because no run without a possible cause has another verdict"
    return lines + [f"{said}: {', '.join(rest)}"] * bool(rest)


def to_json(results: Sequence[Result], stream: str, settings: Mapping[str, Any]) -> str:
    """Return the verdicts as JSON, with the settings of the command. NaN and infinite values become null."""
    claims = [{**_known(asdict(each)), "shown": _size(each)} for each in results]
    known = {name: str(value) for name, value in settings.items()}
    return json.dumps({"stream": stream, "settings": known, "claims": claims}, indent=1) + "\n"


def _asserted(result: Result) -> str:
    """Return the asserted effect as text, with its size in points of our base row if that is known and not 0."""
    if math.isfinite(result.asserted) and result.asserted:
        return f"{result.claim.asserted} ({result.asserted:.2f} points)"
    return result.claim.asserted


def _verdict(result: Result) -> str:
    return f"{result.verdict} ({result.note})" if result.note else str(result.verdict)


def _size(result: Result) -> str:
    """Return the improvement with its interval, or the ratio of two costs, as text. Without a verdict, return `n/a`."""
    if result.verdict in {"not run", "not judged"}:
        return MISSING
    if result.claim.at_most:
        return f"{result.improvement.value:.2f} x"
    return f"{result.improvement}" + (f" q={result.q:.3f}" if math.isfinite(result.q) else "")


def _number(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else MISSING


def _known(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _known(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_known(each) for each in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
