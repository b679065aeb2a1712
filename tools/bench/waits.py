"""Counts of the synchronizations of host and GPU by line of our code, from the warnings of torch."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

ROOT = Path(__file__).absolute().parents[2]  # the repository
ROOMS = (str(ROOT / "ctvr"),)  # modules are loaded through symbolic links in it
SAYS = "synchronizing CUDA operation"  # part of the text of each such warning


@contextmanager
def waits_of(device: torch.device) -> Iterator[Counter[str]]:
    """Context manager: yield a counter of host synchronizations by file and line; it stays empty without a GPU."""
    found: Counter[str] = Counter()
    if device.type != "cuda":
        yield found
        return

    def note(message: Warning | str, *given: object) -> None:
        if SAYS in str(message):
            found[_place()] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _place() -> str:
    """Return the innermost line of our code in the call stack, or "torch" if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(ROOMS) and file != __file__:
            return f"{Path(file).relative_to(ROOT / 'ctvr')}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "torch"
