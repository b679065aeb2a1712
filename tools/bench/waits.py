"""Where the host waits for a GPU: torch's own warnings of calls that make it wait, by line of ours."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

ROOT = Path(__file__).absolute().parents[2]  # the package ctvr
ROOMS = tuple(str(ROOT / room) for room in ("methods", "orchestrator"))
SAYS = "synchronizing CUDA operation"  # torch, of each


@contextmanager
def waits_of(device: torch.device) -> Iterator[Counter[str]]:
    """Count the waits of a `with` block by file and line; none where there is no GPU."""
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
    """The innermost line of ours that is on its way to torch."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(ROOMS) and file != __file__:
            return f"{Path(file).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "torch"
