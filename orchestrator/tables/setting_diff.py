"""Differences between the settings of a run and those of its method's paper, and between the seeds of a row.

Differences from a paper follow from settings, differences between seeds from the tag `ctvr.provenance`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.streams.metric_names import ADDS_METRICS
from ctvr.orchestrator.tables.unpublished_settings import deviations, names_of
from ctvr.orchestrator.tracking.run_record import as_text

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord

# Settings that are not compared with a paper, because they concern the execution of a run
OF_THE_RUN = {"seed", "stream", "workers", "threads", "data.prefetch_threads", "data.skip_missing", "data.decoder"}
OF_THE_RUN |= {"tracking.mirror", "tracking.keep_checkpoints", *ADDS_METRICS}
OF_THE_RUN |= {"evaluation.split", "evaluation.batch_size", "evaluation.query_chunk", "backbone.sha256"}
RELEASED_IMAGES = {  # values in divyam3897/UCL@cfaa81d, the protocol of BMU-MoCo's Table 4
    "preset": "paper",
    "backbone.name": "resnet18",
    "backbone.weights": "random",
    "data.num_frames": 1,
    "data.batch_size": 256,
    "optim.epochs": 200,
    "optim.name": "sgd",
    "optim.momentum": 0.9,
    "optim.warmup": 0.0,
    "optim.weight_decay": 5e-4,
    "optim.schedule": "constant",
    "optim.grad_clip": None,
    "optim.carry_momentum": True,
}
DATA_AND_OPTIMISER: dict[str, dict[str, Any]] = {  # settings on published benchmarks, by the first word of `ctvr.paper`
    "msrvtt": {"preset": "paper", "data.num_frames": 12, "data.batch_size": 8, "optim.epochs": 20},
    "actnet": {"preset": "paper-actnet", "data.num_frames": 24, "data.batch_size": 16, "optim.epochs": 20},
    "cvlm": {"preset": "paper", "data.batch_size": 48, "optim.epochs": 10},
    "cifar": RELEASED_IMAGES,
    "tiny": RELEASED_IMAGES,
}
FRAMES = "data.num_frames"
PROVENANCE = "ctvr.provenance"  # tag of a run: inputs of the run key other than settings, as JSON
SHOWN = 12  # maximum settings in a footnote; the CSV has all
CVLM_BACKBONE = (
    "initialized from {name} ({weights}); the paper uses its own pre-trained ViT-B and BERT-B, which are not public"
)


def of_benchmark(paper: str) -> dict[str, Any]:
    """Return the data and optimizer settings that papers print for a benchmark (`msrvtt-10`, ...), or {} if unknown."""
    return DATA_AND_OPTIMISER.get(paper.partition("-")[0], {}) if "-" in paper or paper == "cvlm" else {}


def differences(settings: Mapping[str, Any], paper: Mapping[str, Any], row: str = "") -> dict[str, tuple[str, str]]:
    """Return setting -> (our value, value of the paper) for each setting that differs. Omit unpublished settings.

    A setting that only the run or only the paper has is ignored, because records of older versions lack new settings.
    """
    words = deviations(row or str(settings.get("method", "")))
    followed = {name for name, word in words.items() if str(settings.get(name, "")) == word}
    skipped = OF_THE_RUN | followed | set(names_of(settings, row))
    pairs = {name: (as_text(settings[name]), as_text(value)) for name, value in paper.items() if name in settings}
    for name in pairs.keys() & set(of_data("num_frames")):
        if pairs[name] == pairs.get(FRAMES):  # follows from data.num_frames, which is listed already
            skipped.add(name)
    return {name: pair for name, pair in pairs.items() if name not in skipped and not is_equal(*pair)}


def of_data(name: str) -> list[str]:
    """List the settings of a method that follow from `data.<name>`, such as method.num_frames."""
    return [f"{group}.{name}" for group in ("method", "base", "method.reducer", "base.reducer")]


def is_equal(a: str, b: str) -> bool:
    """Report whether two settings, as text, are equal; numbers are compared by value."""
    try:
        return float(a) == float(b)
    except ValueError:
        return a == b


def format_differences(found: Mapping[str, tuple[str, str]]) -> list[str]:
    """Format each difference as `optim.lr 1e-05 (paper 1e-06)`."""
    return [f"{name} {ours or 'none'} (paper {papers or 'none'})" for name, (ours, papers) in found.items()]


def footnote(found: Mapping[str, tuple[str, str]], what: str = "its paper", is_rest: bool = False) -> str:
    """Return `differs from its paper in: optim.lr 1e-05 (paper 1e-06), ...`, or "" if nothing differs.

    `is_rest`: whether another note lists the differences that all rows share.
    """
    if not found:
        return ""
    texts = format_differences(found)
    more = f", and {len(texts) - SHOWN} more settings (column differs of the CSV file)" if len(texts) > SHOWN else ""
    return f"{'also ' * is_rest}differs from {what} in: {', '.join(texts[:SHOWN])}{more}"


def between_seeds(runs: Sequence[RunRecord]) -> str:
    """Return a footnote on differences in code, weights, versions or machine between the seeds of a row, or ""."""
    made_of = [provenance_of(run) for run in runs]
    of_order = {"stream", "frames"} if len({str(run.settings.get("stream", "")) for run in runs}) > 1 else set()
    names = sorted({name for each in made_of for name in each} - of_order)  # another task order has another digest
    unlike = []
    for name in names:
        groups: dict[str, list[str]] = {}
        for run, each in zip(runs, made_of):
            groups.setdefault(each.get(name, "not recorded"), []).append(str(run.settings.get("seed", "0")))
        if len(groups) > 1:
            parts = [f"{value[:12]} (seed {', '.join(seeds)})" for value, seeds in groups.items()]
            unlike.append(f"{name}: {' and '.join(parts)}")
    return f"seeds were run with different {'; '.join(unlike)}" if unlike else ""


def provenance_of(run: RunRecord) -> dict[str, str]:
    """Return name -> value of the inputs of a run key other than settings, or {} if they are not recorded."""
    try:
        found = dict(json.loads(run.tags.get(PROVENANCE, "")))
    except (ValueError, TypeError, RecursionError):  # MLflow's records may have been edited
        return {}
    return {str(name): str(value) for name, value in found.items()}


def run_preprocessing(run: RunRecord) -> dict[str, str]:
    """Return name -> text on the preprocessing of each backbone of a run (`run_key.describe_preprocessing`)."""
    return {name: words for name, words in provenance_of(run).items() if name.endswith("preprocessing")}
