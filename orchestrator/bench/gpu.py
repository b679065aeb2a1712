"""`make bench-gpu`: training steps and encoding on a GPU at the size of the papers (ViT-B/32, 8 pairs, 12 frames).

Step time, peak memory and videos per second in float32 and bfloat16, then the same step dealt to several processes
that gather their features, as Ray Train runs it: one process per GPU with NCCL, or two on one GPU with gloo.
"""

from __future__ import annotations

import math
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from methods.backbone.clip import Clip
from methods.backbone.load import load_backbone
from methods.base import Batch
from orchestrator.bench.work import VIT, random_batch, second_task
from orchestrator.data.device import prepare_device
from orchestrator.learning.loop import Losses
from orchestrator.learning.optimizer import OptimConfig, make_optimizer, train_only

PAIRS, FRAMES = 8, 12  # of one step: CTVR (arXiv:2503.10111), section 5.1
METHODS_MEASURED = ("framefusion_moe", "clip4clip")


@dataclass(frozen=True)
class GpuRow:
    """One line of the table; `videos_per_second` counts the whole batch over all processes."""

    name: str
    precision: str
    workers: int
    step_ms: float  # median
    videos_per_second: float  # in training
    encoded_per_second: float  # videos, forward pass only
    peak_gib: float  # of one process


def time_step(
    name: str, backbone: Clip, precision: str, device: torch.device, pairs: int, frames: int, steps: int = 20
) -> GpuRow:
    """Steps of one method on `pairs` videos of `frames` frames, shared by all processes of a group if there is one."""
    prepare_device(device)
    workers = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if workers > 1 else 0
    method = second_task(name, backbone).to(device)
    whole = random_batch(backbone, pairs, frames)
    given = {field.name: getattr(whole, field.name) for field in fields(Batch)}
    batch = Batch(**{name: x[rank::workers].to(device) for name, x in given.items() if x is not None})
    groups = method.param_groups()
    train_only(method, groups)
    optimizer = make_optimizer(groups, OptimConfig(), method)
    parameters = [parameter for group in groups for parameter in group["params"]]
    losses: nn.Module = Losses(method.train())
    if workers > 1:
        losses = nn.parallel.DistributedDataParallel(losses, find_unused_parameters=True, broadcast_buffers=False)

    def autocast() -> Any:
        return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            terms = losses(batch)
        torch.stack(list(terms.values())).sum().backward()
        nn.utils.clip_grad_norm_(parameters, OptimConfig().grad_clip or math.inf)
        optimizer.step()
        method.after_step()

    @torch.no_grad()
    def encode() -> None:
        with autocast():
            method.encode_video(batch.frames)

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    step_seconds = _median_seconds(step, device, steps)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    method.eval()
    encode_seconds = _median_seconds(encode, device, steps)
    return GpuRow(name, precision, workers, 1000 * step_seconds, pairs / step_seconds, pairs / encode_seconds, peak)


def _median_seconds(work: Callable[[], None], device: torch.device, steps: int) -> float:
    times = []
    for number in range(steps + 3):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= 3:  # the first ones allocate and choose kernels
            times.append(time.perf_counter() - started)
    return statistics.median(times)


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
    finally:
        dist.destroy_process_group()


def in_parallel(world: int, backend: str, device_type: str, **size: Any) -> list[GpuRow]:
    """The same steps, dealt to `world` processes of this machine."""
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
    """All measurements as Markdown, or a plain sentence where there is no GPU."""
    if not torch.cuda.is_available():
        return "This machine has no GPU that torch can use: nothing was measured."
    device = torch.device("cuda")
    backbone = load_backbone(VIT, "random")
    rows = [
        time_step(name, backbone, precision, device, PAIRS, FRAMES)
        for name in METHODS_MEASURED
        for precision in ("fp32", "bf16")
    ]
    torch.cuda.empty_cache()  # the processes below share the GPU with this one
    count = torch.cuda.device_count()
    rows += in_parallel(count, "cpu:gloo,cuda:nccl", "cuda") if count > 1 else in_parallel(2, "gloo", "cuda")
    head = f"{count} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    return f"{head}; ViT-B/32 with random weights, {PAIRS} pairs x {FRAMES} frames\n\n{to_markdown(rows)}"


def to_markdown(rows: list[GpuRow]) -> str:
    """A table of rows."""
    lines = [
        "| method | precision | processes | step (ms) | videos/s trained | videos/s encoded | peak memory (GiB) |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.precision} | {row.workers} | {row.step_ms:.1f} | {row.videos_per_second:.1f} "
        f"| {row.encoded_per_second:.1f} | {row.peak_gib:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)
