"""Why a trial failed: what would come again, what is the loss of a machine, the one line that says it, and the many
lines for whoever wants to know more."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from pathlib import Path

from ray.train import ControllerError

from ctvr.orchestrator.errors import CtvrError, TrialFailed
from ctvr.orchestrator.on_ray.internals import root_cause
from ctvr.orchestrator.redaction import redact

NODE_DIED = "its node has died"  # in what Ray says of an actor; there is no class of error for it
NO_MEMORY = "running low on memory"  # the same, of one that Ray's memory monitor ended
MOST_SHORT_OF_MEMORY = 20  # attempts of a trial between two finished tasks that this may end
_OWN, _ALL = re.compile(r"actual memory used=([\d.]+)GB"), re.compile(r"GB used / ([\d.]+)GB limit")
LOG_LINES, LOG_BYTES = 200, 100_000  # of a worker's log that are kept
ASK_SECONDS = 15  # that a node may take to send the log of a worker that died


def is_lost_node(error: BaseException) -> bool:
    """Whether an actor died with its node, which a machine that was taken away does to all of them."""
    return any(getattr(each, "preempted", False) or NODE_DIED in str(each) for each in (error, root_cause(error)))


def is_oom_kill(error: BaseException) -> bool:
    """Whether Ray ended a process because others took the machine's memory: it held less than half of it itself."""
    said = next((text for text in map(str, (error, root_cause(error))) if NO_MEMORY in text), "")
    own, limit = max(map(float, _OWN.findall(said)), default=0.0), _ALL.search(said)
    return bool(said) and (limit is None or own < float(limit[1]) / 2)


# Of settings, data or code: the same in every attempt
_MISTAKES = (
    *(ValueError, TypeError, AttributeError, NotImplementedError),
    *(ImportError, NameError, SyntaxError),
)
# What torch says, as a plain RuntimeError, of a fault of the program: tensors of two devices or types, and an operator
# that has no kernel which gives the same numbers twice
_FAULTS = ("on the same device", "same dtype", "expected scalar type", "does not have a deterministic implementation")


def is_permanent(error: BaseException) -> bool:
    """Whether an error of a worker would come again: a mistake in settings, data or code, or a loss without number."""
    if isinstance(error, CtvrError):
        return error.is_permanent
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _FAULTS):
        return True
    return isinstance(error, _MISTAKES)


def to_trial_failed(error: Exception) -> TrialFailed:
    """The reason of a failed Train run in one line: of all workers' errors the one that is no consequence."""
    if isinstance(error, ControllerError):
        cause = error.controller_failure
        return cause if isinstance(cause, TrialFailed) else TrialFailed(one_line(cause))
    causes = [root_cause(each) for each in getattr(error, "worker_failures", {}).values()] or [error]
    first = next((cause for cause in causes if is_permanent(cause)), None)
    lost = next((cause for cause in causes if "ActorDied" in type(cause).__name__), None)
    return TrialFailed(one_line(first or lost or causes[0]), first is not None, _words_of(first or lost or causes[0]))


def _words_of(error: BaseException) -> str:
    """What a worker said last: it noted that on its error, or left it in its log where it had no time to."""
    return str(getattr(error, "traceback_and_log", "")) or fetch_actor_log(error)


def attach_traceback(error: BaseException) -> None:
    """Keep on an error what `traceback_and_log` says of it: it travels with it to another process."""
    with contextlib.suppress(AttributeError):  # a class with slots
        error.traceback_and_log = traceback_and_log(error)  # type: ignore[attr-defined]


def traceback_and_log(error: BaseException) -> str:
    """The traceback of an error of this process, and what the process wrote last."""
    text, log = "".join(traceback.format_exception(type(error), error, error.__traceback__)), _own_log()
    return redact(f"{text}\n{_titled(log)}" if log else text)


def _own_log() -> str:
    """The end of what this process wrote to its standard error, where that is a file: Ray gives every worker one."""
    try:
        file = Path(os.readlink("/proc/self/fd/2"))
        if not file.is_file():
            return ""
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - LOG_BYTES))
            return "\n".join(opened.read().decode(errors="replace").splitlines()[-LOG_LINES:])
    except OSError:  # no Linux
        return ""


def fetch_actor_log(error: BaseException) -> str:
    """The end of the log of an actor that was killed, asked of its node; empty where that cannot be had."""
    actor = getattr(error, "actor_id", None)
    if not actor or is_lost_node(error):  # its log went with it
        return ""
    from ray.util.state import get_log

    try:
        parts = get_log(actor_id=actor, suffix="err", tail=LOG_LINES, timeout=ASK_SECONDS, errors="replace")
        lines = "".join(parts)
    except Exception:  # the node is gone, or Ray's pages are: the line that says why it failed stands without it
        return ""
    return redact(f"{error}\n\n{_titled(lines[-LOG_BYTES:])}")


def _titled(lines: str) -> str:
    return f"The end of the worker's log (at most {LOG_LINES} lines):\n{lines}"


def one_line(error: BaseException) -> str:
    """An error in one line; its type is left out where the message was written for the user."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = redact(lines[0] if lines else "")[:400]
    if isinstance(error, CtvrError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
