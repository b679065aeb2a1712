"""Whether a path is still as good as it was: recorded shares, the noise of both measurements, the table.

A share is a ratio of two things measured beside one another, so it outlives load, and better is larger. A path fails
where a share is below the recorded one by more than both noises together (each the range over its pairs, and at least
`FLOOR` of the share: a range over few pairs is often too small).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.bench.bars import judged
from orchestrator.bench.hot import Measured, Share

FILE = Path(__file__).with_name("shares.json")
FLOOR = 0.03
WORDS = {"times": "times as fast", "memory": "times less memory", "of_gemm": "of the GEMM rate"}
Shares = dict[str, Share]  # which share -> what was recorded


def read_shares(file: Path = FILE) -> dict[str, Shares]:
    """Recorded shares by path; none where there is no file."""
    if not file.is_file():
        return {}
    kept = json.loads(file.read_text(encoding="utf-8"))["paths"]
    return {path: {name: Share(*pair) for name, pair in shares.items()} for path, shares in kept.items()}


def write_shares(rows: Sequence[Measured], conditions: str, file: Path = FILE) -> None:
    """Record what was measured, with the conditions; paths that were not measured stay."""
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    said, paths = known.get("conditions", {}), known.get("paths", {})
    for row in rows:
        said[row.name] = conditions
        paths[row.name] = {name: [round(each.value, 3), round(each.noise, 3)] for name, each in row.shares.items()}
    about = "Shares of `make bench`: [median, range over pairs], each a ratio of CPU seconds or of peak memory."
    about = known.get("about", about)
    text = json.dumps({"about": about, "conditions": said, "paths": paths}, indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def noise(share: Share) -> float:
    """How far a share may be from what another measurement finds."""
    return max(share.noise, FLOOR * share.value)


def short(row: Measured, recorded: Shares) -> str | None:
    """In one line what of a path is below its recorded share by more than the noise; None where nothing is."""
    found = []
    for name, share in row.shares.items():
        was = recorded.get(name)
        if was is None:
            continue
        allowed = was.value - noise(was) - noise(share)
        if not share.value >= allowed:  # NaN is short, too
            found.append(
                f"{share.value:.2f} {WORDS[name]}, recorded {was.value:.2f} (at least {allowed:.2f} with noise)"
            )
    return f"{row.name}: {'; '.join(found)}" if found else None


def failures(rows: Sequence[Measured], recorded: Mapping[str, Shares]) -> list[str]:
    """One line for each path that is below its recorded shares."""
    lines = (short(row, recorded.get(row.name, {})) for row in rows)
    return [line for line in lines if line]


def to_markdown(rows: Sequence[Measured], recorded: Mapping[str, Shares]) -> str:
    """The table: each share with what was recorded in brackets."""
    lines = [
        "| path | ours | plain way | CPU s ours / plain | times as fast | of the GEMM rate | peak MiB ours / plain "
        "| times less | asked | verdict |",
        "|---|---|---|--:|--:|--:|--:|--:|---|---|",
    ]
    for row in rows:
        was = recorded.get(row.name, {})
        shares = [_cell(row.shares.get(name), was.get(name)) for name in ("times", "of_gemm", "memory")]
        peak = f"{row.peak:.0f} / {row.plain_peak:.0f}" if row.peak and row.plain_peak else "-"
        verdict = "not recorded" if not was else "below" if short(row, was) else "as recorded"
        lines.append(
            f"| {row.name} | {row.title} | {row.against} | {row.seconds:.3g} / {row.plain_seconds:.3g} | {shares[0]} "
            f"| {shares[1]} | {peak} | {shares[2]} | {judged(row)} | {verdict} |"
        )
    return "\n".join(lines)


def _cell(share: Share | None, was: Share | None) -> str:
    if share is None:
        return "-"
    return f"{share.value:.2f} ±{share.noise / 2:.2f}" + (f" ({was.value:.2f})" if was else "")
