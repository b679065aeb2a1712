"""`make bench`: how much slower or faster than the plain way, measured on this machine, in one process.

Every line is a ratio. The two sides are run in alternation (a b, b a, a b, ...) on the same inputs after one warm-up,
and the ratio is the median over the pairs, so that whatever else the machine does falls on both. The figures with a
GPU are in bench_gpu.py (`make bench-gpu`).
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods import METHODS, find_method
from methods.backbone.clip import Clip
from methods.backbone.load import TINY, load_backbone
from methods.base import Batch, Method, Task
from orchestrator.config import build, suggest, under
from orchestrator.data.batches import StreamData
from orchestrator.data.frames import FrameSource
from orchestrator.data.settings import DataConfig
from orchestrator.errors import ConfigError
from orchestrator.learning.optimizer import OptimConfig, make_optimizer, train_only

log = logging.getLogger(__name__)

VIT = "ViT-B-32-quickgelu"
LAST_BLOCKS = {"ffa_placement": "deepest", "ffa_layers": 6}
Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One comparison. Seconds are medians, the ratio is ours / other."""

    name: str
    other_name: str
    ours: float
    other: float
    ratio: float
    low: float  # smallest and largest ratio of a pair
    high: float
    pairs: int
    note: str = ""


def paired(name: str, other_name: str, ours: Work, other: Work, pairs: int = 7, warm: bool = True) -> Row:
    """Time two pieces of work in alternation."""
    if warm:
        ours()
        other()
    times: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2:
            b = _seconds(other)
            a = _seconds(ours)
        else:
            a = _seconds(ours)
            b = _seconds(other)
        times.append((a, b))
    ratios = [a / b for a, b in times]
    return Row(
        name,
        other_name,
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        pairs,
    )


def _seconds(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# ------------------------------------------------------------------------------------ the methods


def second_task(name: str, backbone: Clip, settings: dict[str, Any] | None = None) -> Method:
    """A method with the paper's settings on its own copy of a backbone, in the second task of ten.

    A method that keeps features of earlier videos has those of 320 / 10 videos, as MSRVTT-10.
    """
    cls = find_method(name)
    values = {**under(cls.PRESETS.get("paper", {}), "method"), **(settings or {})}
    torch.manual_seed(0)
    method: Method = cls(build(cls.Config, values, "method"), copy.deepcopy(backbone))  # type: ignore[call-arg]
    tasks = [Task(index, f"task_{index + 1:02d}", 10, (index,), 10) for index in range(2)]
    method.begin_task(tasks[0])
    method.end_task(tasks[0], [])
    method.remember(tasks[0], torch.nn.functional.normalize(torch.randn(32, backbone.embed_dim), dim=-1))
    method.begin_task(tasks[1])
    return method


def random_batch(backbone: Clip, pairs: int, frames: int) -> Batch:
    """Noise as videos, and captions."""
    generator = torch.Generator().manual_seed(0)
    size = backbone.image_size
    return Batch(
        frames=torch.randn(pairs, frames, 3, size, size, generator=generator),
        tokens=backbone.tokenize([f"a red square moves left of {number} blue circles" for number in range(pairs)]),
        videos=torch.arange(pairs),
        categories=torch.ones(pairs, dtype=torch.int64),
    )


def training_step(method: Method, batch: Batch) -> Work:
    """One step as the loop takes it: losses, gradients, optimizer."""
    groups = method.param_groups()
    train_only(method, groups)
    optimizer = make_optimizer(groups, OptimConfig())
    method.train()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(method.losses(batch).values())).sum().backward()
        optimizer.step()
        method.after_step()

    return step


def encoding(method: Method, frames: Tensor) -> Work:
    """The video tower's forward pass."""
    method.eval()

    @torch.no_grad()
    def encode() -> Tensor:
        return method.encode_video(frames)

    return encode


def bench_step(backbone: Clip, what: str, pairs_of_batch: int, frames: int, pairs: int = 7) -> list[Row]:
    """FrameFusionMoE beside the fully fine-tuned and the frozen plain backbone, (B pairs, T frames)."""
    batch = random_batch(backbone, pairs_of_batch, frames)
    ours, plain = second_task("framefusion_moe", backbone), second_task("clip4clip", backbone)
    size = f"{what}, {pairs_of_batch} x {frames} frames"
    step = paired(
        f"FrameFusionMoE, training step ({size})",
        "CLIP4Clip, all weights trained",
        training_step(ours, batch),
        training_step(plain, batch),
        pairs,
    )
    frozen = second_task("zero_shot", backbone)
    return [
        step,
        paired(
            f"FrameFusionMoE, encoding ({size})",
            "plain CLIP",
            encoding(ours, batch.frames),
            encoding(frozen, batch.frames),
            pairs,
        ),
    ]


def bench_encoder(name: str, backbone: Clip, what: str, videos: int, frames: int, pairs: int = 5) -> list[Row]:
    """A token-reducing video encoder beside plain CLIP with the same weights, on this process's threads."""
    inputs = random_batch(backbone, videos, frames).frames
    ours, plain = second_task(name, backbone), second_task("zero_shot", backbone)
    title = f"{name}, encoding ({what}, {videos} x {frames} frames)"
    return [paired(title, "plain CLIP", encoding(ours, inputs), encoding(plain, inputs), pairs)]


# ------------------------------------------------------------------------------------ ranking


def bench_ranking(size: int = 3000, pairs: int = 5) -> list[Row]:
    """Ranks of `size` queries among `size` videos, by counting and by sorting twice."""
    from orchestrator.learning.metrics import ranks

    scores = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    target = torch.arange(size)

    def sort_twice() -> np.ndarray:
        places = np.argsort(np.argsort(-scores.numpy(), axis=1), axis=1)
        return places[np.arange(size), target.numpy()] + 1

    if not np.array_equal(ranks(scores, target).numpy(), sort_twice()):
        raise RuntimeError("the two ways to rank disagree")
    title = f"ranking {size} x {size} scores, by counting"
    return [paired(title, "argsort of argsort (NumPy)", lambda: ranks(scores, target), sort_twice, pairs)]


# ------------------------------------------------------------------------------------ data


def render_few(root: Path, per_split: int) -> Path:
    """A stream of two tasks with `per_split` rendered videos in each split of a task; returns its manifest."""
    from orchestrator.importers.builder import write_manifest
    from orchestrator.shapes.files import Film, render_files
    from orchestrator.shapes.scenes import CATEGORIES, draw_scene

    films, tasks = [], []
    for index in range(2):
        name = CATEGORIES[index].name
        task: dict[str, Any] = {"name": f"task_{index + 1:02d}", "categories": [name], "train": [], "val": []}
        task["test"] = []
        for number in range(2 * per_split):
            split = "train" if number < per_split else "test"
            scene = draw_scene(index, np.random.default_rng([index, number]))
            film = Film(f"{split}/{name}_{number}.mp4", scene, False)
            films.append(film)
            item = {"video": f"{name}_{number}", "path": film.path, "category": name}
            task[split].append({**item, "captions": [f"{scene.captions[False]} {number}"]})
        tasks.append(task)
    render_files(root, films, 1, False)
    out = root / "few.json"
    write_manifest({"format": 1, "name": "few", "protocol": "ctvr", "settings": {}, "tasks": tasks}, out)
    return out


class _Undecoded(FrameSource):
    """Decodes a video whenever it is asked for; the store is not used."""

    def load(self, item: Any) -> np.ndarray:
        from orchestrator.video.decode import decode

        return decode(Path(item.path), self.sampling, item.segment, self.decoder).frames


def bench_store(root: Path, videos: int = 12, pairs: int = 5) -> list[Row]:
    """An epoch from the store beside an epoch that decodes in the training process."""
    from orchestrator.store.store import Store
    from orchestrator.streams.load import load_stream

    stream = load_stream(render_few(root / "epoch", videos), root)
    backbone = load_backbone(TINY, "shipped")
    config = DataConfig(num_frames=8, batch_size=4)
    store = Store.open(str(root / "store"))
    stored, decoded = (kind(store, config, backbone.image_size) for kind in (FrameSource, _Undecoded))
    stored.decode_missing(stream.items(0, "train"), workers=1)
    method = second_task("framefusion_moe", backbone)

    def batches(source: FrameSource) -> Iterator[Batch]:
        cpu = torch.device("cpu")
        data = StreamData(stream, source, backbone.tokenize, backbone.mean, backbone.std, config, cpu)
        return data.train_batches([0], seed=0, task=0, epoch=0)

    def read(source: FrameSource) -> Work:
        return lambda: sum(len(batch.videos) for batch in batches(source))

    def train(source: FrameSource) -> Work:
        return lambda: [training_step(method, batch)() for batch in batches(source)]

    size = f"{videos} shapes videos, 8 frames"
    return [
        paired(
            f"batches of an epoch from the store ({size})", "decoding each time", read(stored), read(decoded), pairs
        ),
        paired(f"epoch from the store ({size}, tiny CLIP)", "decoding each time", train(stored), train(decoded), pairs),
    ]


def bench_features(root: Path, backbone: Clip, what: str, settings: dict[str, Any], videos: int, frames: int) -> Row:
    """An epoch of FrameFusionMoE that starts behind its frozen blocks, beside one that starts from the frames."""
    from orchestrator.data.frozen_features import frozen_features
    from orchestrator.store.store import Store
    from orchestrator.streams.load import load_stream

    stream = load_stream(render_few(root / str(videos), videos), root)
    config = DataConfig(num_frames=frames, batch_size=2)
    source = FrameSource(Store.open(str(root / "store")), config, backbone.image_size)
    source.decode_missing(stream.items(0, "train"), workers=1)
    method = second_task("framefusion_moe", backbone, settings)
    cpu = torch.device("cpu")
    plain = StreamData(stream, source, backbone.tokenize, backbone.mean, backbone.std, config, cpu)
    stored = plain.with_features(frozen_features(method, source.store, "fp32"))

    def train(data: StreamData) -> Work:
        return lambda: [training_step(method, batch)() for batch in data.train_batches([0], seed=0, task=0, epoch=0)]

    title = f"epoch from features of {method.frozen_blocks} frozen blocks ({videos} videos, {frames} frames, {what})"
    return paired(title, "from frames", train(stored), train(plain), pairs=5)


# ------------------------------------------------------------------------------------ orchestration


def bench_trial(root: Path, pairs: int = 2, epochs: int = 8) -> list[Row]:
    """A whole trial under Ray Tune, Ray Train and MLflow beside the bare loop; each of them with its own seed."""
    from orchestrator.learning.resolve import resolve
    from orchestrator.learning.run import Places, execute
    from orchestrator.learning.workers import Workers
    from orchestrator.on_ray.trial import TrialPlan
    from orchestrator.on_ray.tune import connect, run_trials
    from orchestrator.tracking.tracker import prepare

    settings: dict[str, Any] = {"method": "framefusion_moe", "stream": str(render_few(root / "trial", 8))}
    settings |= {"backbone.name": TINY, "backbone.weights": "shipped", "data.num_frames": 8, "optim.epochs": epochs}
    places = Places(root.resolve())
    seeds = iter(range(1000))
    uri = f"sqlite:///{root.resolve() / 'mlflow.db'}"

    def bare() -> None:
        execute(resolve({**settings, "seed": next(seeds)}), places, Workers())

    bare()  # decodes, and fills the zero-shot curve that all others read
    prepare(uri, root, "few")
    connect("local", 2)

    def trial() -> None:
        seed = next(seeds)
        plan = TrialPlan(
            f"bench-{seed}", str(places.root), "", uri, None, str(root / f"ray-{seed}"), settings, cpus_per_worker=0.9
        )
        outcome = run_trials(plan, 2, listed=[{"seed": seed}])
        if outcome.complete != 1:
            raise RuntimeError("the trial did not finish")

    row = paired("one trial under Ray and MLflow (2 tasks, tiny CLIP)", "the bare loop", trial, bare, pairs, warm=False)
    return [replace(row, note=f"{row.ours - row.other:.1f} s more")]


# ------------------------------------------------------------------------------------ the command


def _vit() -> Clip:
    return load_backbone(VIT, "random")


BENCHES: dict[str, Callable[[Path], list[Row]]] = {
    "step": lambda root: bench_step(load_backbone(TINY, "shipped"), "tiny CLIP", 8, 8),
    "step-vit": lambda root: bench_step(_vit(), "ViT-B/32", 2, 4, pairs=5),
    "encoder": lambda root: bench_encoder("tempme", _vit(), "ViT-B/32", 1, 12, pairs=11),
    "ranking": lambda root: bench_ranking(),
    "store": bench_store,
    "features": lambda root: [
        bench_features(root, load_backbone(TINY, "shipped"), "tiny CLIP, no FFA", {"use_ffa": False}, 12, 8),
        bench_features(root, _vit(), "ViT-B/32, FFA in the last 6 blocks", LAST_BLOCKS, 2, 12),
        bench_features(root, _vit(), "ViT-B/32, no FFA", {"use_ffa": False}, 2, 12),
    ],
    "trial": bench_trial,
}


def machine() -> str:
    """What the figures were made on."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{os.cpu_count()} CPUs{load}, torch {torch.__version__}, {torch.get_num_threads()} thread, "
        f"Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d')}"
    )


def to_markdown(rows: Sequence[Row]) -> str:
    """A table of rows; a ratio below 1 means that ours is quicker."""
    lines = ["| measured | seconds | against | seconds | ratio | pairs |", "|---|---|---|---|---|---|"]
    for row in rows:
        name = f"{row.name}; {row.note}" if row.note else row.name
        lines.append(
            f"| {name} | {row.ours:.4f} | {row.other_name} | {row.other:.4f} "
            f"| {row.ratio:.2f} ({row.low:.2f} to {row.high:.2f}) | {row.pairs} |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the comparisons and print them as Markdown on stdout."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.bench.cpu", description="Ratios on this machine.")
    parser.add_argument("--only", metavar="NAME", help=f"one of {', '.join(BENCHES)}")
    parser.add_argument("--ray", action=argparse.BooleanOptionalAction, default=True, help="measure a trial under Ray")
    parser.add_argument("--gpu", action="store_true", help="step time, memory and videos per second on a GPU instead")
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    try:
        if arguments.gpu:
            from orchestrator.bench.gpu import gpu_table

            print(gpu_table())
            return 0
        print(f"{machine()}\n\n{to_markdown(run(arguments.only, arguments.ray))}")
    except ConfigError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 2
    return 0


def run(only: str | None = None, ray: bool = True) -> list[Row]:
    """All comparisons, or one of them.

    Raises:
        ConfigError: for a name that is none.
    """
    if only is not None and only not in BENCHES:
        raise ConfigError(f"--only {only}: is no comparison.{suggest(only, BENCHES)} All: {', '.join(BENCHES)}.")
    names = [only] if only else [name for name in BENCHES if ray or name != "trial"]
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="ctvr-bench-") as folder:
        for name in names:
            if name == "encoder" and "tempme" not in METHODS:
                sys.stderr.write("bench: encoder left out: methods/__init__.py has no tempme\n")
                continue
            sys.stderr.write(f"bench: {name} ...\n")
            rows += BENCHES[name](Path(folder) / name)
    return rows


if __name__ == "__main__":
    sys.exit(main())
