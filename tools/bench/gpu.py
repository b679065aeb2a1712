"""`make bench-gpu`: training steps and encoding on a GPU at the size of the papers (ViT-B/32, 8 pairs, 12 frames).

The loop trains as in a run, with copies to the GPU, AdamW, clipping and reads of flags, but on noise from memory. The
table has step time, peak memory, videos per second, host synchronizations and the share of time in which kernels run.
It has a row for each precision, and rows with larger batches in bfloat16. In the last rows, several processes gather
their features, as with Ray Train: one process per GPU with NCCL, or two on one GPU with gloo. Decoding and the store
are not timed.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch.autograd import DeviceType

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.load import load_backbone
from ctvr.orchestrator.data.device import Precision
from ctvr.orchestrator.jobs.step_timing import TimedLoop, now, train_on_noise
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.loop import Loop
from tools.bench.work import VIT, second_task

PAIRS, FRAMES = 8, 12  # pairs of a step, frames of a video: CTVR (arXiv:2503.10111), section 5.1
LARGER = (32, 128)  # pairs per step, in bf16
METHODS_MEASURED = ("framefusion_moe", "clip4clip")
ROOT = Path(__file__).absolute().parents[2]  # the repository
ROOMS = (str(ROOT / "ctvr"),)  # modules are loaded through symbolic links in it
SAYS = "synchronizing CUDA operation"  # part of the text of each such warning


@dataclass(frozen=True)
class GpuRow:
    """One row of the table; `videos_per_second` is the sum over all processes."""

    name: str
    precision: str
    pairs: int  # of a step, over all processes
    workers: int
    step_ms: float  # mean over an epoch
    videos_per_second: float  # in training
    encoded_per_second: float  # videos of a gallery, including the copy of their features
    peak_gib: float  # of one process
    busy: float = 0.0  # share of the epoch's time in which kernels of the first process ran
    waits_a_step: float = 0.0  # host synchronizations of the first process
    waits: dict[str, int] = field(default_factory=dict)  # source line -> host synchronizations in an epoch


class _Timed(TimedLoop):
    """Loop of three epochs: the first allocates memory and selects kernels, then one is timed and one is profiled."""

    waits: Counter[str]  # host synchronizations of the second epoch by source line
    kernel_seconds: float  # in the third epoch

    def _epoch(self, *given: Any, **named: Any) -> dict[str, float]:
        if len(self.seconds) == 2:
            return self._profiled(*given, **named)
        with waits_of(self.workers.device) as self.waits:
            return super()._epoch(*given, **named)

    def _profiled(self, *given: Any, **named: Any) -> dict[str, float]:
        """Run an epoch and sum the time of its kernels and copies; the profiler slows only the host."""
        self.kernel_seconds = 0.0
        if not torch.cuda.is_available():  # a simulated GPU
            return Loop._epoch(self, *given, **named)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            terms = Loop._epoch(self, *given, **named)
            torch.cuda.synchronize(self.workers.device)
        events = profile.profiler.kineto_results.events()  # `profile.events()` takes a minute
        self.kernel_seconds = sum(each.duration_ns() for each in events if each.device_type() == DeviceType.CUDA) / 1e9
        return terms


def time_step(
    name: str, backbone: Clip, precision: Precision, device: torch.device, pairs: int, frames: int, steps: int = 20
) -> GpuRow:
    """Time a method's encoding of videos and its training steps on `pairs` pairs, divided among all processes."""
    sys.stderr.write(f"bench: {name}, {precision}, {pairs} pairs ...\n")
    size = dist.get_world_size() if dist.is_initialized() else 1
    workers = Workers(dist.get_rank() if size > 1 else 0, size, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    method = second_task(name, backbone)
    loop: Any = train_on_noise(_Timed, method, backbone, precision, workers, pairs, frames, steps, epochs=3)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    loop.method.eval()
    encoded = []
    for _ in range(2):
        started = now(device)
        loop._gallery(1, "test")
        encoded.append(now(device) - started)
    step_seconds = loop.seconds[-1] / steps
    return GpuRow(
        name=name,
        precision=precision,
        pairs=pairs,
        workers=size,
        step_ms=1000 * step_seconds,
        videos_per_second=pairs / step_seconds,
        encoded_per_second=4 * pairs / encoded[-1],
        peak_gib=peak,
        busy=loop.kernel_seconds / loop.seconds[-1],
        waits_a_step=sum(loop.waits.values()) / steps,
        waits=dict(loop.waits),
    )


def _worker(rank: int, world: int, port: int, backend: str, device_type: str, size: dict[str, Any], out: str) -> None:
    device = torch.device("cpu")
    if device_type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    try:
        backbone = load_backbone(size["backbone"], size["weights"])
        rows = [
            time_step(name, backbone, precision, device, size["pairs"], size["frames"], size["steps"])
            for name in METHODS_MEASURED
            for precision in size["precisions"]
        ]
        if rank == 0:
            torch.save([row.__dict__ for row in rows], out)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)  # a process of torch 2.15 once ended with SIGABRT, probably at interpreter exit


def in_parallel(world: int, backend: str, device_type: str, **size: Any) -> list[GpuRow]:
    """Time training steps of `METHODS_MEASURED`, whose batch is divided among `world` processes of this machine."""
    import torch.multiprocessing as processes

    given = {"backbone": VIT, "weights": "random", "pairs": PAIRS, "frames": FRAMES, "steps": 20}
    given |= {"precisions": ("fp32", "bf16"), **size}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "rows.pt")
        processes.spawn(_worker, (world, port, backend, device_type, given, out), nprocs=world)
        rows = [GpuRow(**row) for row in torch.load(out, weights_only=True)]
    return [replace(row, name=f"{row.name}, features gathered ({backend})") for row in rows]


def gpu_table() -> str:
    """Return all measurements as Markdown, or a sentence if there is no GPU."""
    if not torch.cuda.is_available():
        return "This machine has no GPU that torch can use: nothing was measured."
    device = torch.device("cuda")
    backbone = load_backbone(VIT, "random")
    rows = [
        time_step(name, backbone, precision, device, PAIRS, FRAMES)
        for name in METHODS_MEASURED
        for precision in get_args(Precision)
    ]
    rows += [time_step(name, backbone, "bf16", device, n, FRAMES) for name in METHODS_MEASURED for n in LARGER]
    torch.cuda.empty_cache()  # the processes below share the GPU with this one
    count = torch.cuda.device_count()
    rows += in_parallel(count, "cpu:gloo,cuda:nccl", "cuda") if count > 1 else in_parallel(2, "gloo", "cuda")
    head = f"{count} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    return f"{head}; ViT-B/32 with random weights, {FRAMES} frames a video\n\n{to_markdown(rows)}"


def to_markdown(rows: list[GpuRow]) -> str:
    """Return a Markdown table, followed by the source lines at which the host waits for the GPU."""
    lines = [
        "| method | precision | pairs | processes | step (ms) | videos/s trained | videos/s encoded "
        "| peak memory (GiB) | kernels run (%) | waits a step |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.name} | {row.precision} | {row.pairs} | {row.workers} | {row.step_ms:.1f} "
        f"| {row.videos_per_second:.1f} | {row.encoded_per_second:.1f} | {row.peak_gib:.2f} "
        f"| {100 * row.busy:.0f} | {row.waits_a_step:.2f} |"
        for row in rows
    ]
    places = sorted({(row.name, row.precision, place, n) for row in rows for place, n in row.waits.items()})
    if places:
        lines += ["", "The host waits in an epoch, by torch's own account:", ""]
        lines += [f"- {name}, {precision}: {n} times at {place}" for name, precision, place, n in places]
    return "\n".join(lines)


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
