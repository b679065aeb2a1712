"""`python -m tests.workers.still [TRIALS] [SECONDS]`: two gloo processes; one is stopped, or the first is slow.

A stopped process must be named by the other, a slow one must not. The limit is 2 s here, where trials have 60.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from queue import Empty
from typing import Any

import torch
import torch.distributed as dist

from ctvr.orchestrator.learning.training.distributed import Workers, patient_group
from ctvr.orchestrator.learning.training.loss_monitor import EpochMetrics
from ctvr.orchestrator.learning.training.pulse import start_heartbeats

EVERY, STILL = 0.2, 2.0
PATIENCE = 120.0  # seconds until a trial counts as missed


def _work(rank: int, folder: str, slow: float, news: Any) -> None:
    """Take steps with an all-reduce each; after every tenth rank 0 is slow, awake or asleep, and the other waits for
    it.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    workers = Workers(rank, 2, patient=patient_group(1))
    pulse = start_heartbeats(
        rank, 2, workers.patient, lambda line: news.put((rank, time.monotonic(), line)), EVERY, STILL
    )
    progress, step = EpochMetrics(workers.device, "task_01, epoch 1"), 0
    news.put((rank, os.getpid(), "started"))
    while not workers.broadcast(os.path.exists(f"{folder}/end")):
        for _ in range(10):
            x = torch.ones(1000)
            dist.all_reduce(x)
            progress.add({"loss": x[0]}, {})
            progress.step(x[1])
            step += 1
            time.sleep(0.002)
        if slow and rank == 0:
            _be_slow(slow, step % 20 == 0)
            news.put((rank, step, "was slow"))
    pulse.close()
    dist.destroy_process_group()


def _be_slow(seconds: float, is_asleep: bool) -> None:
    """Spend time in Python and torch, or wait as for a child that decodes."""
    until, x = time.monotonic() + seconds, torch.rand(300, 300)
    while time.monotonic() < until:
        if is_asleep:
            time.sleep(0.1)
        else:
            x = (x @ x).clamp(0, 1)
            sum(range(10_000))


@contextmanager
def two(slow: float = 0.0) -> Iterator[tuple[list[int], Any]]:
    """Run two processes until the end of the block; yield their process ids, and a queue of their messages."""
    context = get_context("forkserver")  # torch is loaded once for both
    context.set_forkserver_preload(["ctvr.orchestrator.learning.training.distributed"])
    news = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        children = [context.Process(target=_work, args=(rank, folder, slow, news), daemon=True) for rank in range(2)]
        for child in children:
            child.start()
        try:
            for _ in children:
                news.get(timeout=300)
            yield [child.pid or 0 for child in children], news
        finally:
            open(f"{folder}/end", "w", encoding="utf-8").close()
            for child in children:
                if child.is_alive() and child.pid:
                    os.kill(child.pid, signal.SIGCONT)
                child.join(60)
                child.kill()


def named_by_the_other(rank: int, times: int) -> list[float | None]:
    """Stop and continue a process repeatedly; return the seconds until the other named it and its step, or None."""
    found: list[float | None] = []
    with two() as (pids, news):
        for _ in range(times):
            time.sleep(0.5)
            began = time.monotonic()
            os.kill(pids[rank], signal.SIGSTOP)
            line = _next(news, f"worker {rank} of 2 ", "is stalled")
            found.append(time.monotonic() - began if line and "task_01, epoch 1, step" in line else None)
            os.kill(pids[rank], signal.SIGCONT)
            _next(news, f"worker {rank} of 2 ", "has resumed")
    return found


def slow_first(seconds: float, times: int) -> list[str]:
    """Make rank 0 slow repeatedly; return the messages about stalled workers, all of which are false alarms."""
    alarms: list[str] = []
    with two(seconds) as (_, news):
        while times:
            _, _, line = news.get(timeout=PATIENCE)
            times -= line == "was slow"
            alarms += [line] if "is stalled" in line else []
    return alarms


def _next(news: Any, *parts: str) -> str:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            line = str(news.get(timeout=1)[2])
        except Empty:
            continue
        if all(part in line for part in parts):
            return line
    return ""


def main() -> None:
    given = sys.argv[1:]
    trials, seconds = int(given[0]) if given else 20, float(given[1]) if len(given) > 1 else 3.0
    for rank in (0, 1):
        found = named_by_the_other(rank, trials // 2)
        took = [each for each in found if each is not None]
        after = f", after {min(took):.1f} to {max(took):.1f} s (limit {STILL:g} s)" if took else ""
        sys.stdout.write(f"rank {rank} stopped: named in {len(took)} of {len(found)}{after}\n")
    alarms = slow_first(seconds, trials)
    sys.stdout.write(f"rank 0 slow by {seconds:g} s, {trials} times: {len(alarms)} false alarms\n")


if __name__ == "__main__":
    main()
