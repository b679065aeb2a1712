"""Growth of methods with the number of tasks: stored bytes in addition to CLIP, and text passes per query.

Both are counted for ViT-B/32 after the last task of a stream of 10 tasks and of a stream of `--tasks` tasks, on meta
tensors. Parameters and buffers are included. Temporary copies (teachers), replayed pairs and the index of the videos
are not included; a run reports these as `cost/...`.
"""

from __future__ import annotations

import copy
from typing import Any

from ctvr.methods import find_method
from ctvr.methods.base import Method, Task
from ctvr.orchestrator.catalog.cost_table import to_markdown
from ctvr.orchestrator.config import build
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.evaluation.cost import sizes_only, text_passes

GROWING = (
    "framefusion_moe",
    "structalign",
    "moe_adapter",
    "dar",
    "lpi",
    "qdc",
    "drift_adapter",
    "xbt",
    "lambda_orthogonality",
)
SHORT = 10  # tasks of the shorter stream in the comparison
CLASSES = 2  # categories of a task
MAX_TASKS = 1000  # largest number of tasks


def count_bytes(method: Method) -> int:
    """Return the bytes of the parameters and buffers of a method, including its backbone."""
    return sum(each.numel() * each.element_size() for each in (*method.parameters(), *method.buffers()))


def measure_growth(name: str, tasks: int) -> tuple[int, int]:
    """Return the bytes that a method keeps in addition to CLIP after `tasks` tasks, and the text passes of a query."""
    clip: Any = copy.deepcopy(sizes_only())
    cls = find_method(name)
    config: Any = build(cls.Config, {}, "method")
    if cls.wraps:  # its growth does not depend on the depth of the towers, which it copies in every task
        del clip.vision.blocks[1:], clip.text.blocks[1:]
    before = count_bytes(clip)
    if cls.wraps:
        base = find_method(config.base)
        clip = base(build(base.Config, {}, "base"), clip)
    method = cls(config, clip)
    for index in range(tasks):
        categories = tuple(range(CLASSES * index, CLASSES * (index + 1)))
        method.begin_task(Task(index, f"task_{index + 1:02d}", tasks, categories, CLASSES * tasks))
    return count_bytes(method) - before, text_passes(method, tasks)


def growth_table(tasks: int) -> str:
    """Return a Markdown table of the methods that grow with the number of tasks.

    Raises:
        ConfigError: for a number of tasks outside 1 to `MAX_TASKS`.
    """
    if not 1 <= tasks <= MAX_TASKS:
        raise ConfigError(f"must be 1 to {MAX_TASKS}, got {tasks}", "--tasks", remedy="Use --tasks 100.")
    lines = [("method", f"MB after {SHORT} tasks", f"MB after {tasks}", "kB per later task", "text passes of a query")]
    for name in GROWING:
        (short, _), (long, passes) = measure_growth(name, SHORT), measure_growth(name, tasks)
        each = f"{(long - short) / (tasks - SHORT) / 1e3:.1f}" if tasks != SHORT else ""
        lines.append((name, f"{short / 1e6:.2f}", f"{long / 1e6:.2f}", each, str(passes)))
    return to_markdown(lines)
