"""Plain gloo processes that train one case after the other; a process that waits forever is a failure."""

import tempfile
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any

import torch
import torch.distributed as dist

from ctvr.orchestrator.learning.training.distributed import Workers
from tests.workers.cases import Case, run

LIMIT = 60.0  # seconds without any news
SHORT = 3.0  # where a hang is expected
START = 300.0  # seconds until the first, which comes after the imports


class Hang(AssertionError):
    """Raised if some workers have not returned."""


def _work(rank: int, size: int, cases: Sequence[Case], folder: str, store: str, news: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error", FutureWarning)  # what torch is about to forget
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{size}", rank=rank, world_size=size)
    for number, case in enumerate(cases):
        news.put((rank, number, False, ""))
        try:
            found = run(case, Workers(rank, size), store)
        except Exception:
            news.put((rank, number, False, traceback.format_exc()))
            raise
        torch.save(found, f"{folder}/{size}-{number}-{rank}.pt")
        news.put((rank, number, True, ""))
    dist.destroy_process_group()


def together(
    size: int, cases: Sequence[Case], folder: Path, store: Path, found: dict[str, list[Any]], limit: float = LIMIT
) -> None:
    """Run each case on `size` workers, and store their results in `found` by case.

    Raises:
        Hang: if no message arrives for `limit` seconds; it names the case and the workers that have not returned.
        AssertionError: if a worker fails.
    """
    folder.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=folder))  # a group that meets where one before it met may find its addresses
    context = get_context("forkserver")  # torch is loaded once for all of them
    context.set_forkserver_preload(["tests.workers.cases"])
    news = context.Queue()
    arguments = (size, cases, str(folder), str(store), news)
    children = [context.Process(target=_work, args=(rank, *arguments), daemon=True) for rank in range(size)]
    for child in children:
        child.start()
    back, is_on = [-1] * size, False
    try:
        while min(back) < len(cases) - 1:
            case = cases[min(back) + 1]
            patience = START if not is_on else SHORT if case.fault == "one waits" else limit
            try:
                rank, number, is_done, error = news.get(timeout=patience)
            except Empty:
                out = [rank for rank in range(size) if back[rank] == min(back)]
                raise Hang(f"{case.name}: workers {out} of {size} wait for ever") from None
            if error:
                raise AssertionError(f"{cases[number].name}, worker {rank} of {size}:\n{error}")
            is_on = True
            if is_done:
                back[rank] = number
                if min(back) == number:
                    paths = [folder / f"{size}-{number}-{each}.pt" for each in range(size)]
                    found[cases[number].name] = [torch.load(path, weights_only=False) for path in paths]
    finally:
        for child in children:
            if min(back) < len(cases) - 1:
                child.kill()
            child.join()
