"""Text of `ctvr run`: the settings before it starts, a line for each task, the results and the next commands."""

from __future__ import annotations

import math
import os
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ctvr.methods.backbone.architectures import VECTORS
from ctvr.orchestrator.config import as_text
from ctvr.orchestrator.console import format_duration
from ctvr.orchestrator.streams.example_queries import example_queries
from ctvr.orchestrator.streams.metric_names import GAIN
from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.streams.stream import Stream

if TYPE_CHECKING:
    from ctvr.methods.base import Method
    from ctvr.orchestrator.data.batches import StreamData
    from ctvr.orchestrator.settings.experiment import Experiment
    from ctvr.orchestrator.tracking.tracker import Tracker

WIDTH = 110  # characters of a line
FIRST_WITH_BF16 = 8  # compute capability (Ampere) from which TF32 and bf16 exist
FAR_BELOW = 3.0  # a warning is printed if R@1 is this many points below zero-shot CLIP
# Learning rates on imported features: the lowest without a warning, and one that suits most methods
LEAST_ON_FEATURES, ON_FEATURES = 1e-4, 1e-3
DIRECTIONS = {"t2v": "text to video", "v2t": "video to text"}
TITLES = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "MedR", "meanr": "MeanR"}


def start_text(
    experiment: Experiment,
    stream: Stream,
    device: str,
    place: str,
    tracker: Tracker,
) -> str:
    """Describe a run before it starts: method, stream, device, changed settings with their sources, learning rates.

    Args:
        experiment: the experiment.
        stream: the stream.
        device: `cpu` or `cuda`.
        place: text that states where the run is recorded.
        tracker: records of finished runs, which contain measurements of GPU memory.
    """
    run, split = experiment.run, experiment.evaluation.split
    counts = sum(len(getattr(task, split)) for task in stream.tasks)
    title = f"{experiment.name} on {stream.name}: {len(stream.tasks)} tasks, {counts} {split} {stream.domain}"
    lines = [f"{title}; {device}, {run.precision}, seed {run.seed}"]
    lines += _wrap_lines("settings", changed_settings(experiment) or ["all as in the paper"])
    if rates := learning_rates(experiment):
        lines += _wrap_lines("rates", rates)
    lines += _wrap_lines("warning", low_rates(experiment))
    lines += _wrap_lines("precision", slow_precision(device, run.precision))
    lines += _wrap_lines("kernels", kernels_of_model(device))
    if device == "cuda":
        from ctvr.orchestrator.sweeps.measured_memory import memory_text

        lines += _wrap_lines("memory", memory_text(tracker, experiment))
    lines += _wrap_lines("written", [place])
    return "\n".join(lines)


def cut_captions_text(data: StreamData) -> list[str]:
    """Return lines for the start of a run on captions that the text tower truncates."""
    from ctvr.orchestrator.data.caption_cuts import describe_cuts  # needs torch

    return _wrap_lines("captions", describe_cuts(data))


def backbone_text(method: Method) -> list[str]:
    """Return lines for the start of a run on a backbone of another kind than CLIP, with the parts that it offers."""
    from ctvr.methods.backbone.clip import Clip  # needs torch
    from ctvr.methods.backbone.vectors import Vectors
    from ctvr.orchestrator.learning.run.tower_parts import describe_offer, is_of_clip

    clip = next((part for part in method.modules() if isinstance(part, Clip)), None)
    if clip is None or isinstance(clip, Vectors) or is_of_clip(clip):
        return []
    return _wrap_lines("backbone", [f"{clip.name} offers all that this method uses ({describe_offer(clip)})"])


def slow_precision(device: str, precision: str) -> list[str]:
    """Return a list with a warning if a GPU with TF32 and bf16 computes in full float32; otherwise an empty list."""
    import torch

    if device != "cuda" or precision != "fp32" or torch.cuda.get_device_capability()[0] < FIRST_WITH_BF16:
        return []
    name = torch.cuda.get_device_name()
    return [f"fp32 without TF32; precision=tf32 or precision=bf16 can be faster on {name}, and changes the key"]


def kernels_of_model(device: str) -> list[str]:
    """Return a list with a warning if a CPU uses kernels for its own model; otherwise an empty list."""
    if device != "cpu" or os.environ.get("CTVR_KERNELS") != "native":
        return []
    return [
        "for this CPU model, so results differ in rounding from other CPUs (CTVR_KERNELS=native, torch imported before "
        "ctvr, or a CPU without AVX2)"
    ]


def _wrap_lines(name: str, parts: Sequence[str]) -> list[str]:
    text = "; ".join(parts)
    indent = " " * 12
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<10}", subsequent_indent=indent, break_long_words=False)


def changed_settings(experiment: Experiment) -> list[str]:
    """List the settings that differ from the method's defaults, as text with their source (user, preset, stream)."""
    sources = {**dict.fromkeys(experiment.settings, "derived"), **experiment.sources}
    unchanged = {**experiment.default_settings, "method.base": experiment.settings.get("method.base")}
    return [
        f"{name}={as_text(value)} ({sources[name]})"
        for name, value in experiment.settings.items()
        if value != unchanged.get(name)
    ]


def learning_rates(experiment: Experiment) -> list[str]:
    """List the effective peak learning rates as text: the method's rates times `optim.lr_scale`."""
    if not experiment.optim.epochs:
        return ["nothing is trained (optim.epochs=0)"]
    scale, rates = experiment.optim.lr_scale, _rates(experiment)
    if scale == 1:
        return [f"{name} {value:g}" for name, value in rates.items()]
    return [f"{name} {value:g} x optim.lr_scale {scale:g} = {value * scale:g}" for name, value in rates.items()]


def low_rates(experiment: Experiment) -> list[str]:
    """Return a list with a warning if all learning rates are too low for imported features; otherwise an empty list.

    The towers on features start as the identity, which CLIP's rates of 1e-7 to 1e-5 leave almost unchanged. The warning
    names the largest rate and a value for it.
    """
    from ctvr.orchestrator.settings.resolve import FEATURES  # imports torch

    rates = _rates(experiment)
    if experiment.backbone.name != VECTORS or not experiment.optim.epochs or not rates:
        return []
    name = max(rates, key=lambda each: rates[each])
    if rates[name] * experiment.optim.lr_scale >= LEAST_ON_FEATURES:
        return []
    advised = experiment.layers.get(FEATURES, {}).get(name, ON_FEATURES)
    rate = rates[name] * experiment.optim.lr_scale
    remedy = f"{name}={advised:g}" if rates[name] < LEAST_ON_FEATURES else ""
    if advised * experiment.optim.lr_scale < LEAST_ON_FEATURES or not remedy:
        remedy = f"{remedy} optim.lr_scale=1".strip()
    return [f"the largest learning rate is {rate:g}, which hardly changes the towers over features. Use {remedy}"]


def _rates(experiment: Experiment) -> dict[str, float]:
    """Map the settings that are learning rates of the method and of its base to their values, except zeros."""
    return {
        name: value
        for name, value in experiment.settings.items()
        if name.startswith(("method.lr", "base.lr")) and isinstance(value, float) and value
    }


def time_left(seconds: Sequence[float], left: int) -> str:
    """Return a text with the remaining time, estimated from the tasks of this process; empty after the last task.

    Args:
        seconds: durations of the finished tasks.
        left: number of tasks that remain.
    """
    return f", about {format_duration(sum(seconds) / len(seconds) * left)} left" if left and seconds else ""


def warning_of(experiment: Experiment, metrics: Mapping[str, float]) -> str:
    """Return a warning if a model is far worse than its untrained backbone; otherwise an empty text."""
    gain = metrics.get(GAIN, math.nan)
    if not gain < -FAR_BELOW:
        return ""
    rates = "; ".join(learning_rates(experiment))
    hint = f" Lower the learning rate ({rates})." if rates else ""
    return f"warning: R@1 is {-gain:.2f} points below zero-shot: training has damaged the backbone.{hint}"


def result_text(name: str, split: str, stream: Stream, metrics: Mapping[str, float]) -> str:
    """Return a text with the results after the last task: recall in both directions, gain and forgetting, explained."""
    title = f"{name} on {stream.name}, {split} {stream.domain}"
    found = {key.removeprefix("stream/"): value for key, value in metrics.items() if key.startswith("stream/")}
    if "t2v/r1" not in found:
        return "\n".join([title, *(f"{name:<22}{found[name]:8.2f}" for name in sorted(found))])
    rows = [way for way in DIRECTIONS if f"{way}/r1" in found]
    columns = [name for name in TITLES if any(f"{way}/{name}" in found for way in rows)]
    lines = [title, f"{'':<14}" + "".join(f"{TITLES[name]:>8}" for name in columns)]
    for way in rows:
        cells = "".join(f"{found.get(f'{way}/{name}', math.nan):8.2f}" for name in columns)
        lines.append(f"{DIRECTIONS[way]:<14}{cells}")
    lines.append("R@k: percent of queries whose own item is among the first k; MedR, MeanR: median and mean rank")
    if "t2v/r1_gain" in found:
        before = "imported features before any training" if stream.text_features else "untrained backbone (zero-shot)"
        lines.append(f"gain {found['t2v/r1_gain']:+.2f}: points of R@1 above the {before}")
    if "t2v/bwf" in found:
        text = "points of R@1 that earlier tasks have lost in their own galleries (BWF)"
        lines.append(f"forgetting {found['t2v/bwf']:.2f}: {text}")
    return "\n".join(lines)


def next_text(stream: Stream, ranks: Mapping[str, Rank], run_id: str, more: str) -> str:
    """Return the next commands: the table of the stream's runs, a query that the model answers, details of this run.

    Args:
        stream: stream of the run.
        ranks: rank of each query after the last task.
        run_id: MLflow's ID of the run.
        more: options that every command needs.
    """
    commands = [f"ctvr table {stream.name}{more}"]
    if stream.domain == "videos":
        query = next((caption for caption, _ in example_queries(stream, ranks)), "TEXT")
        commands.append(f"ctvr search {shlex.quote(query)} --model {run_id[:8]}{more}")
    commands.append(f"ctvr runs show {run_id[:8]}{more}")
    return "next: " + "\n      ".join(commands)
