"""Plots of a trained model's attention, merged patches, expert weights, scores and query drift (`ctvr plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load, load_task_checkpoints
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.pages.frames import draw_attention, draw_expert_weights, draw_merges, encode_pictures
from ctvr.orchestrator.retrieval.attention import attention_maps, expert_weights, merges, score_matrices
from ctvr.orchestrator.retrieval.drift import text_drift
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.retrieval.video_files import videos_of
from ctvr.orchestrator.streams.stream import Item

Kind = Literal["attention", "merges", "gates", "scores", "drift"]
COUNTS = {"attention": 2, "merges": 2, "gates": 8, "scores": 12, "drift": 40}  # defaults of --count
FORMS = (".png", ".pdf")


def plot(
    kind: Kind,
    name: str,
    execution: ExecutionConfig,
    among: Sequence[Path] = (),
    count: int | None = None,
    block: int | None = None,
    out: Path | None = None,
) -> str:
    """Plot the model called `name` (`jobs.load_model.load`).

    Args:
        kind: `attention`, the attention of a block over the patches of frames (CTVR, figures 5 and 7); `merges`, merged
            patches (TempMe, figures 4 and 7); `gates`, weights of experts (CAMoE, figure 7); `scores`, similarities
            before and after calibration (CAMoE, figure 5); `drift`, the first task's queries after each task (CTVR,
            figure 3).
        among: videos, or a folder of videos; if empty, the first test videos of the stream's last task.
        count: number of videos or, for `drift`, of queries of a task, >= 1; if None, the value in `COUNTS`.
        block: block of `attention`, counted from 1.
        out: the file, .png or .pdf, or .svg for `scores` and `drift`; if None, RUNS/pages/KIND-NAME.png.

    Raises:
        ConfigError: for an unknown model, a model that this plot does not apply to, or a file that cannot be written.
    """
    file = out or execution.runs / "pages" / f"{kind}-{Path(name).name}.png"
    forms = (*FORMS, ".svg") if kind in ("scores", "drift") else FORMS  # the others are pictures of frames
    if file.suffix.lower() not in forms:
        raise ConfigError(
            f"--out {file}: this plot cannot be written as {file.suffix or 'a file without an ending'}",
            "plot",
            remedy=f"Use {' or '.join(forms)}.",
        )
    count = COUNTS[kind] if count is None else count
    if count < 1:
        counted = "queries" if kind == "drift" else "videos"
        raise ConfigError(f"--count must be >= 1, got {count}", "plot", remedy=f"Use a positive number of {counted}.")
    if block is not None and kind != "attention":
        raise ConfigError("--block applies to attention only", f"plot {kind}", remedy="Omit it.")
    if among and kind in ("scores", "drift"):
        raise ConfigError("uses the captions and videos of the stream", f"plot {kind}", remedy="Omit --inputs.")
    if not file.parent.is_dir() and out is not None:
        raise ConfigError(f"plot: the folder {file.parent} does not exist. Create it, or use another --out.")
    form = file.suffix.lower()[1:]
    drawn = (
        _drift(name, execution, count, form)
        if kind == "drift"
        else _draw(kind, name, execution, among, count, block, form)
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        publish(file, drawn)
    except OSError as error:
        raise ConfigError(f"plot: {file} cannot be written ({error.strerror}). Use another --out.") from error
    say(f"written: {file}")
    return str(file)


def _draw(
    kind: Kind, name: str, execution: ExecutionConfig, among: Sequence[Path], count: int, block: int | None, form: str
) -> bytes:
    model = load(name, execution)
    if kind == "scores":
        return _scores(model, count, form)
    items = _items(model, among)[:count]
    names = [f"{item.video}: {item.captions[0]}" if item.captions else item.video for item in items]
    if kind == "merges":
        return encode_pictures(draw_merges(merges(model, items), names), form)
    if kind == "gates":
        frames, weights = expert_weights(model, items)
        return encode_pictures(draw_expert_weights(frames.numpy(), weights, names), form)
    return encode_pictures(draw_attention(attention_maps(model, items, block), names), form)


def _items(model: Model, among: Sequence[Path]) -> tuple[Item, ...]:
    if among:
        return videos_of(among)
    if model.stream is None:
        raise ConfigError("its stream does not exist here", f"model {model.name}", remedy="Add --inputs FILE.")
    return tuple(model.stream.items(len(model.stream.tasks) - 1, model.trained.experiment.evaluation.split))


def _scores(model: Model, count: int, form: str) -> bytes:
    from ctvr.orchestrator.figures.figures import draw_scores, to_bytes

    plain, calibrated, names = score_matrices(model, max(count, 2))
    title = f"{model.method}: the first caption of each of {len(names)} videos, and these videos"
    panels = {"scores": plain.tolist(), "calibrated": calibrated.tolist()}
    return to_bytes(draw_scores(panels, title), form)


def _drift(name: str, execution: ExecutionConfig, count: int, form: str) -> bytes:
    from ctvr.orchestrator.figures.figures import draw_drift, to_bytes

    found = text_drift(load_task_checkpoints(name, execution), count)
    tasks, queries = found.points.shape[:2]
    title = (
        f"{name}: {queries} queries of task 1 after each task ({found.explained:.0%} of their variance), with their "
        "mean cosine to their features after task 1"
    )
    labels = [f"after task {number} ({cosine:.3f})" for number, cosine in enumerate(found.cosines, 1)]
    return to_bytes(draw_drift(found.points, found.others, labels, title, f"queries of task {tasks}"), form)
