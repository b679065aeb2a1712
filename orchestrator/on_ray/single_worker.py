"""A trial of one worker runs in the process that Ray Tune gave it: it needs no group, no controller and no driver.

Tune hands the process on to the next trial, so that torch and CLIP are imported once for many. What is killed is
started anew by Tune and goes on from the last commit; how often it may fail, `TrialMonitor` counts.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ray import tune

from ctvr.orchestrator.errors import TrialFailed
from ctvr.orchestrator.on_ray.failures import is_permanent, one_line, traceback_and_log
from ctvr.orchestrator.on_ray.plan import TrialPlan
from ctvr.orchestrator.on_ray.worker import TrialWork, run_trial

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
SECONDS_TO_STOP = "60"  # that a stopped trial may take to leave its loop before Tune gives up the process


def run_single_worker(work: TrialWork) -> None:
    """Run one trial in this process; every finished task is reported to Tune.

    Raises:
        TrialFailed: for whatever went wrong, in one line; the traceback is in this process's log.
    """
    from ctvr.orchestrator.learning.distributed import Workers

    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = SECONDS_TO_STOP  # read when the next trial comes
    try:
        run_trial(work, Workers(device=_device(work.plan)), tune.report)
    except Exception as error:
        log.exception("trial %s failed", work.name)
        raise TrialFailed(one_line(error), is_permanent(error), traceback_and_log(error)) from None
    finally:
        _release_memory()


def _device(plan: TrialPlan) -> torch.device:
    """Where this process computes: the first of the GPUs that Ray lets it see, and never a CPU in a GPU's stead."""
    import torch

    if not plan.gpus_per_worker:
        return torch.device("cpu")
    from ctvr.orchestrator.data.device import require_gpu

    require_gpu()
    return torch.device("cuda", 0)


def _release_memory() -> None:
    """Free what the trial held: its process lives on, and the next trial counts its own peak of memory."""
    import torch

    from ctvr.orchestrator.data.malloc_tuning import trim

    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim()
    with contextlib.suppress(OSError):  # Linux alone
        Path("/proc/self/clear_refs").write_text("5")  # peak resident memory is counted from here on
