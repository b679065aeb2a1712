"""`ctvr doctor --gpu`: a measurement of about a minute that finds the bottleneck of training on this machine.

Three rates are measured. Steps: epochs of the task loop with CLIP4Clip on noise in memory (step_timing.py), in every
precision. Store: the first read of packed clips from the user's store by the loop's own batches, including SHA-256.
Decoding: a video of 15 s and 320 x 240 pixels, decoded repeatedly by one process per CPU. All written files are
removed.
"""

from __future__ import annotations

import contextlib
import copy
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from ctvr.methods import find_method
from ctvr.methods.backbone.architectures import TINY
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.base import Task
from ctvr.orchestrator.console import say
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.device import Precision
from ctvr.orchestrator.data.prefetch import num_prefetch_threads
from ctvr.orchestrator.jobs.step_timing import TimedLoop, noise_stream, train_on_noise
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.on_ray.plan import join_uri
from ctvr.orchestrator.processes import count_processors
from ctvr.orchestrator.store.packer import Packer
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item
from ctvr.orchestrator.synthetic.video_files import write_textured
from ctvr.orchestrator.video.pool import Decoder, Job
from ctvr.orchestrator.video.sampling import Sampling

PAIRS, LARGER, FRAMES, EPOCHS = 8, 32, 12, 20  # pairs per step, pairs per larger step, frames, epochs per run
FASTER = 1.2  # minimum speed-up for recommending a setting
KIND = "frames"


@dataclass(frozen=True)
class Step:
    """Time of one training step."""

    precision: Precision
    pairs: int
    seconds: float

    @property
    def clips_per_second(self) -> float:
        return self.pairs / self.seconds


@dataclass(frozen=True)
class Measured:
    """Results of `ctvr doctor --gpu`: times of training steps, and rates of reading and decoding."""

    gpu: str  # name of the GPU; "" if the machine has none
    model: str  # name of the backbone
    steps: tuple[Step, ...]
    store: float  # clips per second that are read
    clip_bytes: int  # bytes of a stored clip
    decoding: float  # clips per second that all processes decode
    processors: int  # number of CPUs

    def step(self, precision: str, pairs: int = PAIRS) -> Step | None:
        """Return the step of this precision and number of pairs, or None if it was not measured."""
        return next((each for each in self.steps if (each.precision, each.pairs) == (precision, pairs)), None)

    @property
    def fastest(self) -> Step:
        """Return the fastest step of PAIRS pairs."""
        return min((each for each in self.steps if each.pairs == PAIRS), key=lambda each: each.seconds)

    @property
    def bound(self) -> str:
        """Return the slowest stage of a run of EPOCHS epochs, "steps", "store" or "decoding" (in the first epoch)."""
        seconds = {  # seconds for each clip of an epoch
            "steps": 1 / self.fastest.clips_per_second,
            "store": 1 / self.store,
            "decoding": 1 / (self.decoding * EPOCHS),
        }
        return max(seconds, key=lambda name: seconds[name])


def probe(store: str, runs: Path, steps: int = 10, megabytes: int = 100, seconds: int = 15) -> str:
    """Measure this machine and return the report.

    Args:
        store: URI of the store that a run would read; if empty, the store in the runs folder.
        runs: the runs folder.
        steps: timed steps for each precision.
        megabytes: size of all clips that are stored and read, in MB.
        seconds: length of the decoded video in seconds.

    Raises:
        ConfigError: if the store cannot be used.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_gpu = device.type == "cuda"
    if not is_gpu:
        torch.set_num_threads(1)  # the default of a run
    place = store or str(runs / "store")
    processors = count_processors()
    backbone = load_backbone("ViT-B-32-quickgelu", "random") if is_gpu else load_backbone(TINY, "shipped")
    kinds: list[tuple[Precision, int]] = [(each, PAIRS) for each in get_args(Precision) if is_gpu or each != "tf32"]
    kinds += [("bf16", LARGER)] if is_gpu else []
    timed = []
    for precision, pairs in kinds:
        say(f"doctor: steps of {pairs} pairs in {precision} ...")
        timed.append(Step(precision, pairs, _step_seconds(backbone, precision, device, pairs, steps)))
    say(f"doctor: {megabytes} MB in {place} ...")
    read, clip_bytes = _store_rate(place, backbone, device, megabytes)
    say("doctor: decoding ...")
    decoded = _decoding_rate(backbone.image_size, processors, seconds)
    name = torch.cuda.get_device_name(device) if is_gpu else ""
    return report(Measured(name, backbone.name, tuple(timed), read, clip_bytes, decoded, processors), place)


def _step_seconds(backbone: Clip, precision: Precision, device: torch.device, pairs: int, steps: int) -> float:
    cls = find_method("clip4clip")
    method = cls(cls.Config(), copy.deepcopy(backbone))  # it trains the backbone
    method.begin_task(Task(0, "task_01", 2, (0,), 2))
    loop = train_on_noise(TimedLoop, method, backbone, precision, Workers(device=device), pairs, FRAMES, steps, 2)
    return loop.seconds[-1] / steps


class _StoredFrames:
    """Replacement of FrameSource that returns stored frames for any item."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def key(self, item: Item) -> str:
        return f"{int(item.video.rpartition('-')[2]):064x}"

    def load(self, item: Item) -> np.ndarray:
        return self.store.get(KIND, self.key(item))["frames"]


def _store_rate(place: str, backbone: Clip, device: torch.device, megabytes: int) -> tuple[float, int]:
    """Return the clips per second of a first read by training batches, and the bytes of a clip."""
    size = backbone.image_size
    frames = np.random.default_rng(0).integers(0, 256, (FRAMES, size, size, 3), dtype=np.uint8)
    clips = max(PAIRS, round(megabytes * 1e6 / frames.nbytes))
    stream, config = noise_stream(clips, 1), DataConfig(num_frames=FRAMES, batch_size=PAIRS)
    with _temporary_store(place) as folder:
        with Packer(Store.open(folder), KIND) as packer:
            for number in range(clips):
                packer.add(f"{number:064x}", {"frames": frames + np.uint8(number % 256)}, {})
        _forget_pages(folder)
        source: Any = _StoredFrames(Store.open(folder))  # a new store object, which has not verified or mapped anything
        data = StreamData(stream, source, backbone.tokenize, backbone.mean, backbone.std, config, device)
        started = time.perf_counter()
        for batch in data.train_batches([0], 0, 0, 0):
            last = batch.frames
        last[0, 0, 0, 0, 0].item()  # waits for the device
        return clips / (time.perf_counter() - started), frames.nbytes


@contextlib.contextmanager
def _temporary_store(place: str) -> Iterator[str]:
    """Yield the address of a temporary store inside the user's store, which is removed at the end."""
    folder = join_uri(place, f"probe-{secrets.token_hex(4)}")
    try:
        yield folder
    finally:
        if "://" in folder:
            store = Store.open(folder)
            store.remove([entry.name for entry in store.entries()])
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _forget_pages(folder: str) -> None:
    """Remove a local folder's files from the page cache, so that the disk is read."""
    if "://" in folder or not hasattr(os, "posix_fadvise"):
        return
    for file in filter(Path.is_file, Path(folder).rglob("*")):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _decoding_rate(size: int, processes: int, seconds: int) -> float:
    """Return the clips per second that `processes` child processes decode, without the time of their start."""
    with tempfile.TemporaryDirectory() as folder, Decoder(processes) as decoder:
        job = Job(str(write_textured(Path(folder) / "clip.mp4", seconds)), Sampling(FRAMES, size))
        list(decoder.map([job] * processes))
        count = 4 * processes
        started = time.perf_counter()
        list(decoder.map([job] * count))
        return count / (time.perf_counter() - started)


def report(found: Measured, place: str) -> str:
    """Return a text with the measurements, the bottleneck of training, and the settings that help."""
    device = found.gpu or f"no GPU that torch can use; {found.processors} processors, one of them for the steps"
    lines = [
        f"{platform.node()}: {device}; torch {torch.__version__}",
        f"clip4clip, {found.model}, {FRAMES} frames a video",
    ]
    lines += [
        f"  step      {step.precision}, {step.pairs} pairs: {1000 * step.seconds:.1f} ms, "
        f"{step.clips_per_second:.0f} clips/s"
        for step in found.steps
    ]
    megabytes = found.store * found.clip_bytes / 1e6
    lines += [
        f"  store     {place}: {megabytes:.0f} MB/s, {found.store:.0f} clips/s of {found.clip_bytes / 1e6:.2f} MB, at "
        "the first read",
        f"  decoding  {found.decoding:.1f} clips/s by {found.processors} processes, once for each video",
        f"bound by {found.bound} in a run of {EPOCHS} epochs",
        *(f"  -> {line}" for line in remedies(found)),
    ]
    return "\n".join(lines)


def remedies(found: Measured) -> list[str]:
    """Return the settings that relieve the bottleneck."""
    if found.bound == "store":
        threads = num_prefetch_threads(None, torch.device("cuda" if found.gpu else "cpu"))
        return [
            "put the store on a local disk (--store FOLDER), or its copies (CTVR_CACHE)",
            f"data.prefetch_threads={max(4, 2 * threads)} reads more clips at a time; {threads} by default",
        ]
    if found.bound == "decoding":
        return ["`ctvr cache build --cluster` decodes on all nodes of a cluster, before any GPU is used"]
    return _faster_steps(found)


def _faster_steps(found: Measured) -> list[str]:
    lines = []
    plain, best = found.step("fp32"), found.fastest
    if plain is not None and plain.seconds >= FASTER * best.seconds:
        gain = plain.seconds / best.seconds
        lines.append(f"precision={best.precision} is {gain:.1f} times as fast as fp32; results differ in rounding")
    small, large = found.step("bf16"), found.step("bf16", LARGER)
    if small and large and large.clips_per_second >= 2 * small.clips_per_second:
        lines.append(
            f"a step of {PAIRS} pairs waits for the host: one of {LARGER} takes {large.seconds / small.seconds:.1f} "
            "times as long. Run several trials on the GPU (--gpus-per-trial 0.25), or "
            f"data.batch_size={LARGER}, which changes the result"
        )
    if not found.gpu:
        lines.append("a GPU makes steps faster; on CPUs, a sweep runs one trial on each processor")
    return lines or ["no setting was found that makes steps faster; a sweep runs one trial on each GPU"]
