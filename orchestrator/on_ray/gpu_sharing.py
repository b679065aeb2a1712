"""GPU sharing: each trial may use its share of the memory. A trial that runs out of memory is run again alone.

Trials are synchronised by locks on two files per GPU in the node's temporary folder.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ctvr.orchestrator.addresses import require_own
from ctvr.orchestrator.errors import OutOfMemory
from ctvr.orchestrator.processes import hold_lock

log = logging.getLogger(__name__)

CONTEXT_BYTES = 600 * 10**6  # estimate of a process's GPU memory that torch does not count


def run_on_share(share: float, run: Callable[[], None], release: Callable[[], None]) -> None:
    """Run a trial on its share of a GPU; if it runs out of memory, run it again with the GPU to itself.

    A second lack of memory is final. With `share` >= 1, or 0 for a CPU, `run` is called once and nothing is locked.

    Args:
        share: GPUs of the process.
        run: the trial. It continues from its commits, so a second call repeats no finished task.
        release: frees the memory of the first call.

    Raises:
        OutOfMemory: if the trial does not fit a whole GPU.
    """
    if not 0 < share < 1:
        run()
        return
    try:
        with _locked(is_alone=False):
            limit_memory(share)
            run()
        return
    except OutOfMemory as error:
        log.warning("%s; the trial waits for exclusive use of the GPU", error)
    release()
    with _locked(is_alone=True):
        limit_memory(1.0)
        run()


def limit_memory(share: float) -> None:
    """Limit this process to its share of the GPU's memory, so that it cannot take memory from other trials."""
    import torch

    if not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if share >= 1 else max(0.01, share - CONTEXT_BYTES / total), 0)


@contextmanager
def _hold_own(path: Path, is_alone: bool) -> Iterator[None]:
    """Hold the lock of a file of this user with a name that others know.

    Raises:
        ConfigError: if it is a link, or belongs to another user.
    """
    require_own(path)
    with hold_lock(path, is_shared=not is_alone, opener=_private):
        require_own(path)  # also if another user has made it since
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextmanager
def _locked(is_alone: bool) -> Iterator[None]:
    """Hold the GPU's lock, shared or exclusive. A waiting exclusive lock takes precedence over later shared ones."""
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "0").replace(os.sep, "-")
    stem = Path(tempfile.gettempdir()) / f"ctvr-gpu-{os.getuid()}-{name}"
    with ExitStack() as queue, ExitStack() as use:
        queue.enter_context(_hold_own(Path(f"{stem}.queue"), is_alone))
        use.enter_context(_hold_own(Path(f"{stem}.use"), is_alone))
        if not is_alone:
            queue.close()
        yield
