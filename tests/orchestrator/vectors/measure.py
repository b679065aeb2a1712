"""Measurement of the diagnosis: `python -m tests.orchestrator.vectors.measure SEED [open]` prints its table."""

from __future__ import annotations

import sys
from pathlib import Path

from ctvr.orchestrator.vectors.canary_vectors import CanaryVectors
from ctvr.orchestrator.vectors.same_embedder import Comparison, compare
from tests.orchestrator.vectors.embedders import Vectors, embed
from tests.orchestrator.vectors.plantings import EMBEDDERS, Pipeline, Planting, draw, draw_rounding


def canaries(vectors: Vectors) -> CanaryVectors:
    return CanaryVectors(Path("canaries.npz"), {"videos": vectors.videos, "texts": vectors.texts})


def diagnose(planting: Planting) -> Comparison:
    """Embed the canaries by the pipeline before and after a change, and compare both."""
    base = planting.kind.base
    pipelines = Pipeline(**base), Pipeline(**{**base, **planting.changes})
    first, second = (canaries(embed(planting.embedder, pipeline)) for pipeline in pipelines)
    return compare(first, second)


def count_false_alarms(seed: int, count: int, norms: tuple[str, ...] = ("unit", "none")) -> dict[str, int]:
    """Count the verdicts of `count` repetitions that differ by rounding only."""
    verdicts: dict[str, int] = {}
    bases = {(name, norm): canaries(embed(name, Pipeline(norm=norm))) for name in EMBEDDERS for norm in norms}
    for number, (embedder, changes) in enumerate(draw_rounding(seed, count)):
        norm = norms[number // 2 % len(norms)]
        again = canaries(embed(embedder, Pipeline(**{"norm": norm, **changes})))
        verdict = compare(bases[embedder, norm], again).verdict
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    return verdicts


def main(seed: int, only_open: bool) -> None:
    plantings = [each for each in draw(seed) if not (only_open and each.is_held_out)]
    found = right = 0
    for planting in plantings:
        result = diagnose(planting)
        is_found, is_right = result.verdict != "equal", result.cause.key in planting.kind.causes
        is_found = is_found and result.cause.key not in ("equal", "rounding")
        found, right = found + is_found, right + is_right
        mark = "held out" if planting.is_held_out else "open"
        cells = (planting.kind.name, mark, planting.embedder, str(planting.changes), result.verdict, result.cause.key)
        sys.stdout.write("| " + " | ".join((*cells, "right" if is_right else "WRONG")) + " |\n")
    sys.stdout.write(f"{found} of {len(plantings)} found, cause right in {right}\n")
    if not only_open:
        sys.stdout.write(f"200 repetitions that differ by rounding: {count_false_alarms(seed, 200)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), "open" in sys.argv[2:])
