"""Runs printed scripts in processes that cannot import ctvr."""

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.exporters.script import script_of, write_script
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import iter_items
from ctvr.orchestrator.video.sampling import NATIVE, Sampling
from tests.orchestrator.video.clips import decode_apart

ROOT = Path(__file__).resolve().parents[3]
FRAMES = 4
# Runs a script without ctvr; STOP is the number of files after which the process ends as if killed
RUN = """
import os, runpy, sys
sys.modules["ctvr"] = None
stop, replace = int(sys.argv[1]), os.replace
def count(*paths):
    global stop
    stop -= 1
    if stop == -1:
        os._exit(9)
    replace(*paths)
os.replace = count
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_script(name: str, folder: Path, *words: object, stop: int = -1) -> subprocess.CompletedProcess[str]:
    """Run a script in `folder`; with `stop`, it ends before it writes that file (0 is the first)."""
    file = folder / f"{name}-script.py"
    if not file.exists():
        write_script(script_of(name), file)
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each and Path(each).resolve() != ROOT]
    env = {**os.environ, "PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    given = [sys.executable, "-c", RUN, str(stop if stop >= 0 else 10**9), str(file), *map(str, words)]
    return subprocess.run(given, cwd=folder, env=env, capture_output=True, text=True)


def write_table(manifest: str, file: Path) -> Path:
    """Write the table of a stream and return the folder of its videos."""
    items = list(iter_items(load_stream(manifest, file.parent)))
    rows = [
        [item.video, caption, item.category, split, task.name]
        for task, split, item in items
        for caption in item.captions
    ]
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([["video", "caption", "category", "split", "task"], *rows])
    return Path(items[0][2].path).parent


def captions_of(table: Path) -> list[str]:
    """Return the captions of a table's rows."""
    with table.open(newline="") as file:
        return [row["caption"] for row in csv.DictReader(file)]


def frames_of(video: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the frames that ctvr samples of a video (T, H, W, 3), and their times (T,)."""
    found = decode_apart(video, Sampling(FRAMES, NATIVE))
    return found.frames, found.timestamps


def assert_equal(found: np.ndarray, expected: Any) -> None:
    """Compare vectors, except for the rounding of another process."""
    np.testing.assert_allclose(found, expected.detach().float().numpy(), rtol=1e-4, atol=1e-6)
