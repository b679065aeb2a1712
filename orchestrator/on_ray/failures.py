"""Why a trial failed: what would come again, what is the loss of a machine, and the one line that says it."""

from __future__ import annotations

from ray.train import ControllerError

from orchestrator.errors import CtvrError, TrialFailed
from orchestrator.on_ray.internals import cause_of
from orchestrator.redaction import redact

NODE_DIED = "its node has died"  # in what Ray says of an actor; there is no class of error for it


def is_lost_node(error: BaseException) -> bool:
    """Whether an actor died with its node, which a machine that was taken away does to all of them."""
    return any(getattr(each, "preempted", False) or NODE_DIED in str(each) for each in (error, cause_of(error)))


# What torch says, as a plain RuntimeError, of a fault of the program: tensors of two devices or types, and an operator
# that has no kernel which gives the same numbers twice
_FAULTS = ("on the same device", "same dtype", "expected scalar type", "does not have a deterministic implementation")


def is_final(error: BaseException) -> bool:
    """Whether an error of a worker would come again: a mistake in settings, data or code, or a loss without number."""
    if isinstance(error, CtvrError):
        return error.is_final
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _FAULTS):
        return True
    return isinstance(error, (ValueError, TypeError, AttributeError, NotImplementedError))


def explain(error: Exception) -> TrialFailed:
    """The reason of a failed Train run in one line: of all workers' errors the one that is no consequence."""
    if isinstance(error, ControllerError):
        cause = error.controller_failure
        return cause if isinstance(cause, TrialFailed) else TrialFailed(line_of(cause))
    causes = [cause_of(each) for each in getattr(error, "worker_failures", {}).values()] or [error]
    first = next((cause for cause in causes if is_final(cause)), None)
    lost = next((cause for cause in causes if "ActorDied" in type(cause).__name__), None)
    return TrialFailed(line_of(first or lost or causes[0]), is_final=first is not None)


def line_of(error: BaseException) -> str:
    """An error in one line; its type is left out where the message was written for the user."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = redact(lines[0] if lines else "")[:400]
    if isinstance(error, CtvrError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
