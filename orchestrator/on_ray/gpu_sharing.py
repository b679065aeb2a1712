"""GPU sharing: each trial may use its share of the memory. A trial that runs out of memory is run again alone.

Trials are synchronized by locks on two files per GPU in the node's temporary folder.
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

CONTEXT_BYTES = 600 * 10**6  # estimated GPU memory of a process that torch does not count, such as the CUDA context


def run_on_share(share: float, run: Callable[[], None], release: Callable[[], None]) -> None:
    """Run a trial on its share of a GPU; if it runs out of memory, run it again with the GPU to itself.

    With `share` >= 1, or 0 for a CPU, `run` is called once, without a lock.

    Args:
        share: GPUs of the process.
        run: the trial. It continues from its commits, so a second call does not repeat finished tasks.
        release: frees the memory of the first call.

    Raises:
        OutOfMemory: if the trial does not fit a whole GPU.
    """
    if not 0 < share < 1:
        run()
        return
    try:
        with _lock_gpu(is_alone=False):
            limit_memory(share)
            run()
        return
    except OutOfMemory as error:
        log.warning("%s; the trial waits for exclusive use of the GPU", error)
    release()
    with _lock_gpu(is_alone=True):
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
def _hold_lock_file(path: Path, is_alone: bool) -> Iterator[None]:
    """Hold the lock on a file of this user in a folder that other users can write to.

    Raises:
        ConfigError: if the file is a link, or belongs to another user.
    """
    require_own(path)
    with hold_lock(path, is_shared=not is_alone, opener=_open_private):
        require_own(path)  # again, because another user may have created it since the first check
        yield


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextmanager
def _lock_gpu(is_alone: bool) -> Iterator[None]:
    """Hold the GPU's lock, exclusive if `is_alone`. A waiting exclusive lock takes precedence over later locks."""
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "0").replace(os.sep, "-")
    stem = Path(tempfile.gettempdir()) / f"ctvr-gpu-{os.getuid()}-{name}"
    with ExitStack() as queue, ExitStack() as use:
        queue.enter_context(_hold_lock_file(Path(f"{stem}.queue"), is_alone))
        use.enter_context(_hold_lock_file(Path(f"{stem}.use"), is_alone))
        if not is_alone:
            queue.close()
        yield
