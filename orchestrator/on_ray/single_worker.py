"""Execution of a trial with one worker, directly in the process of Ray Tune's trial.

Tune reuses the process for the next trial, so that torch and CLIP are imported once for many trials. Tune restarts a
killed process, and the trial continues from the last commit or mid-task checkpoint; `TrialMonitor` limits the number of
failures.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ray import tune

from ctvr.orchestrator.errors import Interrupted, TrialFailed
from ctvr.orchestrator.on_ray.failures import is_permanent, one_line, traceback_and_log
from ctvr.orchestrator.on_ray.gpu_sharing import run_on_share
from ctvr.orchestrator.on_ray.internals import kv_put
from ctvr.orchestrator.on_ray.interruption import await_end, interruption_of
from ctvr.orchestrator.on_ray.plan import TrialPlan, progress_note
from ctvr.orchestrator.on_ray.worker import TrialWork, run_trial

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
SECONDS_TO_STOP = "60"  # time for a stopped trial to leave its loop before Tune abandons the process


def run_single_worker(work: TrialWork) -> None:
    """Run one trial in this process; report every finished task to Tune.

    Raises:
        TrialFailed: for any error, with a one-line reason; the traceback is in the log of this process.
    """
    from ctvr.orchestrator.learning.training.distributed import Workers
    from ctvr.orchestrator.learning.training.pulse import report_progress

    interruption = interruption_of(work.plan)
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = SECONDS_TO_STOP  # read when the next trial starts
    try:
        send = partial(kv_put, progress_note(work.plan.session, work.name))
        with report_progress(send, lambda: interruption.can_pause):
            device = _device(work.plan)
            run_on_share(
                work.plan.gpus_per_worker,
                lambda: run_trial(work, Workers(device=device), tune.report, interruption),
                _release_memory,
            )
    except Interrupted:
        await_end(work.plan, work.name)
    except Exception as error:
        log.exception("trial %s failed", work.name)
        raise TrialFailed(one_line(error), is_permanent(error), traceback_and_log(error)) from None
    finally:
        _release_memory()


def _device(plan: TrialPlan) -> torch.device:
    """Return the CPU if the plan has no GPUs, otherwise the first GPU that Ray assigned to this process.

    Raises:
        CtvrError: if torch cannot use the assigned GPU; the CPU never replaces it.
    """
    import torch

    if not plan.gpus_per_worker:
        return torch.device("cpu")
    from ctvr.orchestrator.data.device import require_gpu

    require_gpu()
    return torch.device("cuda", 0)


def _release_memory() -> None:
    """Free the memory of the trial, because the process is reused and the next trial measures its own peak."""
    import torch

    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)  # returns freed memory to the system
    with contextlib.suppress(OSError):  # Linux only
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of the resident memory
