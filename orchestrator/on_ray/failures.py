"""Trial failures: class (permanent error, lost node, lack of memory), one-line message, last output of the worker."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from pathlib import Path

from ray.train import ControllerError

from ctvr.methods.user_code import place_in_user_code
from ctvr.orchestrator.errors import CtvrError, TrialFailed
from ctvr.orchestrator.on_ray.internals import root_cause
from ctvr.orchestrator.redaction import redact

NODE_DIED = "its node has died"  # text in Ray's message about an actor; Ray has no exception class for it
NO_MEMORY = "running low on memory"  # text in the message about a process that Ray's memory monitor killed
MOST_SHORT_OF_MEMORY = 20  # out-of-memory kills that a trial survives between two finished tasks
_OWN, _ALL = re.compile(r"actual memory used=([\d.]+)GB"), re.compile(r"GB used / ([\d.]+)GB limit")
LOG_LINES, LOG_BYTES = 200, 100_000  # limits on the stored part of a worker's log
ASK_SECONDS = 15  # timeout of a request to a node for the log of a dead worker


def is_lost_node(error: BaseException) -> bool:
    """Return whether an actor died with its node, as on a preempted machine."""
    return any(getattr(each, "preempted", False) or NODE_DIED in str(each) for each in (error, root_cause(error)))


def is_oom_kill(error: BaseException) -> bool:
    """Return whether Ray's memory monitor killed a process that itself used less than half of the memory limit.

    Other processes caused such a kill, so the trial is retried.
    """
    said = next((text for text in map(str, (error, root_cause(error))) if NO_MEMORY in text), "")
    own, limit = max(map(float, _OWN.findall(said)), default=0.0), _ALL.search(said)
    return bool(said) and (limit is None or own < float(limit[1]) / 2)


# Errors in settings, data or code, which every attempt repeats
_MISTAKES = (*(ValueError, TypeError, AttributeError, NotImplementedError), *(ImportError, NameError, SyntaxError))
# Parts of torch's RuntimeError messages about errors in the program: tensors on two devices or of two dtypes, and an
# operator without a deterministic kernel
_FAULTS = ("on the same device", "same dtype", "expected scalar type", "does not have a deterministic implementation")


def is_permanent(error: BaseException) -> bool:
    """Return whether a worker's error is permanent: wrong settings, data or code, or a non-finite loss."""
    if isinstance(error, CtvrError):
        return error.is_permanent
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _FAULTS):
        return True
    return isinstance(error, _MISTAKES)


def to_trial_failed(error: Exception) -> TrialFailed:
    """Convert the error of a Ray Train run to TrialFailed, whose reason is the worker error that caused all errors."""
    if isinstance(error, ControllerError):
        cause = error.controller_failure
        return cause if isinstance(cause, TrialFailed) else TrialFailed(one_line(cause))
    causes = [root_cause(each) for each in getattr(error, "worker_failures", {}).values()] or [error]
    first = next((cause for cause in causes if is_permanent(cause)), None)
    lost = next((cause for cause in causes if "ActorDied" in type(cause).__name__), None)
    shown = first or lost or causes[0]
    return TrialFailed(one_line(shown), first is not None, last_output(shown))


def last_output(error: BaseException) -> str:
    """Return a worker's last output, which is attached to its error, or read from its log if it was killed."""
    return str(getattr(error, "traceback_and_log", "")) or fetch_actor_log(error)


def attach_traceback(error: BaseException) -> None:
    """Attach `traceback_and_log` to an error, so that it is pickled with the error."""
    with contextlib.suppress(AttributeError):  # a class with slots
        error.place = place_in_user_code(error)  # type: ignore[attr-defined]
        error.traceback_and_log = traceback_and_log(error)  # type: ignore[attr-defined]


def traceback_and_log(error: BaseException) -> str:
    """Return the traceback of an error of this process, and the end of the process's log."""
    text, log = "".join(traceback.format_exception(type(error), error, error.__traceback__)), _own_log()
    return redact(f"{text}\n{_add_title(log)}" if log else text)


def _own_log() -> str:
    """Return the end of this process's stderr if it is a file, as in Ray's workers; otherwise ""."""
    try:
        file = Path(os.readlink("/proc/self/fd/2"))
        if not file.is_file():
            return ""
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - LOG_BYTES))
            return "\n".join(opened.read().decode(errors="replace").splitlines()[-LOG_LINES:])
    except OSError:  # not Linux
        return ""


def fetch_actor_log(error: BaseException) -> str:
    """Return the end of the log of a killed actor, requested from its node; empty if it is not available."""
    actor = getattr(error, "actor_id", None)
    if not actor or is_lost_node(error):  # the log was lost with the node
        return ""
    from ray.util.state import get_log

    try:
        parts = get_log(actor_id=actor, suffix="err", tail=LOG_LINES, timeout=ASK_SECONDS, errors="replace")
        lines = "".join(parts)
    except Exception:  # the node or Ray's State API is unavailable, so that only the one-line reason remains
        return ""
    return redact(f"{error}\n\n{_add_title(lines[-LOG_BYTES:])}")


def _add_title(lines: str) -> str:
    return f"End of the worker's log (at most {LOG_LINES} lines):\n{lines}"


def one_line(error: BaseException) -> str:
    """Return an error in one line: its message and, unless it is a CtvrError, its type and place in the user's code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = redact(lines[0] if lines else "")[:400]
    if isinstance(error, CtvrError):
        return text
    place = getattr(error, "place", "") or place_in_user_code(error)
    return (f"{place}: " if place else "") + (f"{type(error).__name__}: {text}" if text else type(error).__name__)
