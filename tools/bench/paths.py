"""The hot paths, at the papers' size and at a toy size, each compared with a plain implementation.

Batches repeat videos as often as batches of the real splits, in which we counted them (32 videos of 20 captions per
task). On MSRVTT-10, 8 pairs have 7 different videos. On MSRVTT-20, a batch of StructAlign has 44 % as many different
videos as pairs, here 2 of 4.

Shapes: B pairs, T frames, Q captions, V videos, d joint embedding.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ctvr.methods.backbone.architectures import TINY
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.base import Batch
from ctvr.methods.xpool import XPool
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.interpreter import child_environment, run_module
from ctvr.orchestrator.synthetic.video_files import write_textured
from tools.bench.reference import (
    as_released,
    captions_like_msrvtt,
    nothing_known,
    ranks_by_sorting,
    texts_by_prototype,
    with_plain_attention,
    with_plain_towers,
    xpool_scores,
)
from tools.bench.timing import HotPath
from tools.bench.work import VIT, Work, encoding, random_batch, render_few, second_task, training_step

Make = Callable[[Path, bool], HotPath]  # arguments: its own folder; whether to use the toy size


def clip(is_toy: bool) -> tuple[Clip, str]:
    """Return the backbone for the toy size or the papers' size, and its name in titles."""
    return (load_backbone(TINY, "shipped"), "tiny CLIP") if is_toy else (load_backbone(VIT, "random"), VIT[:8])


def step_path(method: str, pairs: int, distinct: int, frames: int) -> Make:
    """Return a function that makes the hot path of a training step whose batch has `distinct` different videos."""

    def make(root: Path, is_toy: bool) -> HotPath:
        backbone, name = clip(is_toy)
        count = 8 if is_toy else pairs
        batch = repeating(random_batch(backbone, count, frames), count * distinct // pairs)
        made = second_task(method, backbone)
        plain, how = training_step(with_plain_towers(made), nothing_known(batch)), "plain towers"
        if method == "framefusion_moe":
            plain = with_plain_attention(training_step(as_released(made), nothing_known(batch)))
            how = "attention and experts as released"
        return HotPath(
            f"{method}, training step, {name}, {count} pairs of {count * distinct // pairs} videos x {frames} frames",
            f"every row encoded, nothing kept, {how}",
            training_step(made, batch),
            plain,
            pairs=7 if is_toy else 2,
            is_heavy=not is_toy,
        )

    return make


def repeating(batch: Batch, distinct: int) -> Batch:
    """Return the batch with its videos replaced by repetitions of its first `distinct` videos, in order."""
    rows = torch.arange(len(batch.video_ids)) % distinct
    return replace(batch, frames=batch.frames[rows], video_ids=rows, unaugmented_video_ids=tuple(rows.tolist()))


def texts(root: Path, is_toy: bool) -> HotPath:
    """Return the hot path of encoding captions once for each task, as an evaluation after task 2 does."""
    from ctvr.orchestrator.learning.evaluation.evaluate import encode_texts
    from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig

    backbone, name = clip(is_toy)
    method = second_task("framefusion_moe", backbone).eval()
    number, tasks, config = 64 if is_toy else 96, (0, 1), EvaluationConfig()
    tokens = backbone.tokenize(captions_like_msrvtt(number))
    cpu = torch.device("cpu")
    released = as_released(method)

    def ours() -> list[torch.Tensor]:
        return [encode_texts(method, tokens, task, config, cpu) for task in tasks]

    def in_order() -> list[torch.Tensor]:
        return texts_by_prototype(released, tokens, tasks, config.batch_size)

    plain = with_plain_attention(in_order)
    for one, other in zip(ours(), plain()):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    title = f"captions of an evaluation, {name}, {number} captions x {len(tasks)} prototypes"
    against = "in the stream's order, padded to the longest of 32, attention and experts as released"
    return HotPath(title, against, ours, plain, 7 if is_toy else 3)


def ranking(root: Path, is_toy: bool, large: int = 3000) -> HotPath:
    """Return the hot path of ranking captions and videos from features."""
    from ctvr.orchestrator.learning.evaluation.ranking import TILE, Ranked, rank

    size = 500 if is_toy else large
    captions, videos = torch.randn(2, size, 512, generator=torch.Generator().manual_seed(0))
    target = torch.arange(size)

    def count() -> Ranked:
        return rank(lambda rows, columns: captions[rows] @ videos[columns].mT, target, (0, size), (0, size))

    def plain() -> tuple[np.ndarray, np.ndarray]:
        return ranks_by_sorting(captions, videos)

    found = count()
    if any(np.abs(a.rank.numpy() - b).max() > 0.5 for a, b in zip((found.to_videos, found.videos), plain())):
        raise RuntimeError("the two ways to rank disagree")  # by half a rank at most, from ties
    title = f"ranks of {size} captions and {size} videos from features, in tiles of 512 x {TILE}"
    return HotPath(title, "matrix, argsort of argsort (NumPy), twice", count, plain, 7 if is_toy else 3)


def xpool(root: Path, is_toy: bool) -> HotPath:
    """Return the hot path of X-Pool's scores in closed form."""
    size, frames, backbone = 64 if is_toy else 256, 12, load_backbone(TINY, "shipped")
    method: XPool = second_task("xpool", backbone).eval()  # type: ignore[assignment]
    queries, gallery = torch.randn(size, backbone.embed_dim), torch.randn(size, frames, backbone.embed_dim)

    @torch.no_grad()
    def ours() -> torch.Tensor:
        return method.score(queries, gallery)

    def plain() -> torch.Tensor:
        return xpool_scores(method, queries, gallery)

    torch.testing.assert_close(ours(), plain(), rtol=1e-4, atol=1e-5)
    title = f"xpool's scores, {size} captions x {size} videos x {frames} frames, d = {backbone.embed_dim}"
    return HotPath(title, "a vector for every pair", ours, plain, 7 if is_toy else 5)


def tempme(root: Path, is_toy: bool) -> HotPath:
    """Return the hot path of encoding videos with merged tokens."""
    backbone, name = clip(is_toy)
    videos = 4 if is_toy else 1
    inputs = random_batch(backbone, videos, 12).frames
    made, plain = second_task("tempme", backbone), with_plain_towers(second_task("zero_shot", backbone))
    title = f"tempme, encoding, {name}, {videos} x 12 frames"
    return HotPath(title, "plain CLIP, all tokens", encoding(made, inputs), encoding(plain, inputs), 7 if is_toy else 5)


class _Undecoded(FrameSource):
    """Source of frames that decodes a video at each request and does not use the store."""

    def load(self, item: Any) -> np.ndarray:
        from ctvr.orchestrator.video.decode import decode

        return decode(Path(item.path), self.sampling, item.segment, self.decoder).frames


def store(root: Path, is_toy: bool) -> HotPath:
    """Return the hot path of reading an epoch's batches from the store."""
    from ctvr.orchestrator.store.store import Store
    from ctvr.orchestrator.streams.load import load_stream

    videos = 4 if is_toy else 16
    stream = load_stream(render_few(root / "epoch", videos), root)
    backbone = load_backbone(TINY, "shipped")
    config, objects = DataConfig(num_frames=12, batch_size=8), Store.open(str(root / "store"))
    stored, decoded = (kind(objects, config, 64 if is_toy else 224) for kind in (FrameSource, _Undecoded))
    stored.decode_missing(stream.items(0, "train"), workers=1)

    def batches(source: FrameSource) -> Iterator[Batch]:
        cpu = torch.device("cpu")
        data = StreamData(stream, source, backbone.tokenize, backbone.mean, backbone.std, config, cpu)
        return data.train_batches([0], seed=0, task=0, epoch=0)

    def read(source: FrameSource) -> Work:
        return lambda: sum(len(batch.video_ids) for batch in batches(source))

    title = f"batches of an epoch from the store, {videos} videos of shapes, 12 frames of {stored.sampling.size}"
    plain = read(decoded)
    return HotPath(title, "decoding each epoch", read(stored), plain, 5)


def decoding(root: Path, is_toy: bool) -> HotPath:
    """Return the hot path of decoding videos of an embedded stream; a damaged video raises an error."""
    from ctvr.orchestrator.streams.load import load_stream
    from ctvr.orchestrator.video.decode import decode
    from ctvr.orchestrator.video.sampling import Sampling

    items = load_stream(render_few(root / "videos", 2 if is_toy else 16), root).items(0, "train")
    sampling = Sampling(num_frames=12, size=224)

    def by(name: str) -> Work:
        return lambda: [decode(item.path, sampling, None, name) for item in items]

    title = f"{len(items)} videos of shapes decoded by PyAV, 12 frames of 224"
    against = "decord's frames, with PyAV to see damage"
    return HotPath(title, against, by("pyav"), by("decord"), 5)


def cold(root: Path, is_toy: bool) -> HotPath:
    """Return the hot path of decoding a video in the format of benchmark videos; a damaged video raises an error."""
    from ctvr.orchestrator.video.decode import decode
    from ctvr.orchestrator.video.sampling import Sampling

    clip = write_textured(root / "clip.mp4", 2 if is_toy else 15)

    def by(name: str) -> Work:
        return lambda: decode(clip, Sampling(num_frames=12, size=224), None, name)

    title = f"a clip of 320 x 240 and {2 if is_toy else 15} s decoded by PyAV, strict, 12 frames of 224"
    against = "decord's frames, with PyAV to see damage"
    return HotPath(title, against, by("pyav"), by("decord"), 5)


def start(root: Path, is_toy: bool) -> HotPath:
    """Return the hot path of starting a command that does not train."""

    def child(*words: str) -> Work:
        return lambda: subprocess.run(words, env=child_environment(), stdout=subprocess.DEVNULL, check=True)

    plain = child(sys.executable, "-c", "import open_clip, ctvr.orchestrator.learning.run.execute")
    ours = child(*run_module("ctvr", "methods"))
    title = "`ctvr methods`, from start to end"
    return HotPath(title, "loading what trains first", ours, plain, 2, is_heavy=True)


ONE_SIZE = ("start",)  # paths without a toy size
PATHS: dict[str, Make] = {
    "step": step_path("framefusion_moe", 8, 7, 12),
    "structalign": step_path("structalign", 4, 2, 12),
    "texts": texts,
    "tempme": tempme,
    "ranking": ranking,
    "ranking-10000": partial(ranking, large=10_000),
    "xpool": xpool,
    "store": store,
    "decoding": decoding,
    "cold": cold,
    "start": start,
}
