"""Ten queries as a person would type them, and the rank at which a trained model finds the intended clip.

    python docs/typed_queries.py zero_shot best-shapes-5 upper_bound --runs runs

Each task of shapes-5 has two queries. None of them is a caption, and no model was trained on them. Models are named as
for `ctvr search --model`; each must have run on shapes-5. The table is Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import ctvr

QUERIES = {
    "yellow hat appearing beside something green": "test_magic_00f",
    "green gem jumps, then goes right around an orange toy, lava": "test_fountain_02f",
    "blue runner hides behind a green cart in the mountains": "test_tunnel_00f",
    "zooming out from a purple cactus in the desert": "test_camera_07b",
    "yellow triangle falls from above near a white bar, city": "test_elevator_10f",
    "green triangle coming out of a star on grid paper": "test_morphing_07b",
    "white top spinning clockwise beside an orange bar": "test_spinning_00f",
    "pink bug turning black in the forest": "test_chameleon_02f",
    "green disc touching something yellow": "test_magnets_10f",
    "pink player pulls a blue piece to the left, brick wall": "test_pushing_07b",
}


def ranks(name: str, runs: str) -> tuple[list[int], int]:
    """Return the rank of each query's clip for one model, from 1, and the number of searched videos."""
    model = ctvr.load(name, runs=runs)
    total = sum(len(block.items) for block in model.gallery())
    found = model.search(list(QUERIES), k=total)
    return [next(hit.rank for hit in hits if hit.video == video) for hits, video in zip(found, QUERIES.values())], total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="run ids, runs, sweeps, methods, best-shapes-5")
    parser.add_argument("--runs", default="runs", help="folder of the runs (%(default)s)")
    arguments = parser.parse_args()
    columns = {name: ranks(name, arguments.runs) for name in arguments.models}
    lines = [f"| query | clip | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for row, (query, video) in enumerate(QUERIES.items()):
        lines.append(f"| {query} | {video} | {' | '.join(str(found[row]) for found, _ in columns.values())} |")
    medians = (f"{statistics.median(found):g} of {total}" for found, total in columns.values())
    lines.append(f"| median rank | | {' | '.join(medians)} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
