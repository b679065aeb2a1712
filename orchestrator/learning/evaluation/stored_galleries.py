"""Passing of stored galleries to the method, whose tasks may differ from the tasks of the stream.

A stream may hide its boundaries (`Stream.chunked`). The videos of a task are then stored by the method's newest task
(`Stream.method_task`), which may store the videos of several tasks, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ctvr.methods.base import Method, Task
from ctvr.orchestrator.data.batches import task_of
from ctvr.orchestrator.streams.stream import Stream


def announce_gallery(
    method: Method, stream: Stream, galleries: Sequence[Tensor], index: int, device: torch.device
) -> None:
    """Call `on_gallery_stored` after the videos of task `index` were stored.

    Args:
        galleries: features (V, ...) of each task so far.
    """
    number = stream.method_task(index)
    parts = [galleries[i] for i in range(index + 1) if stream.method_task(i) == number]
    stored = parts[0] if len(parts) == 1 else torch.cat(parts)
    method.on_gallery_stored(task_of(stream, number, stream.method_tasks), stored.to(device))


def repeat_tasks(
    method: Method, stream: Stream, galleries: Sequence[Tensor], device: torch.device, begin: Callable[[Task], object]
) -> None:
    """Repeat `begin_task` (through `begin`) and `on_gallery_stored` for the tasks that have galleries."""
    for index in range(len(galleries)):
        for number in stream.learned_in(index):
            begin(task_of(stream, number, stream.method_tasks))
        if stream.method_task(index) >= 0:  # the method before an upgrade has stored the other galleries
            announce_gallery(method, stream, galleries, index, device)
