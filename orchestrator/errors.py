"""Every exception of ours that a caller tells apart, each with the exit status that it gives a command.

    Exception
    └── CtvrError                            1    one line for the user; the command line prints it without a traceback
        ├── ConfigError (ValueError)         2    a mistake of the user: a setting, an option, a file
        │   ├── TrackingUnavailable          2    MLflow's server does not answer
        │   └── UntrustedCode                2    a file names a class that the user has not named
        ├── VideoError (ValueError)          1    one video cannot be used
        ├── IndexDisagrees (ValueError)      1    the decoder shows another frame than the index of a video lists
        ├── BadRecord (ValueError)           1    a record of the tracking's files that can never be accepted
        ├── CorruptObject (ValueError)       1    the bytes of an object are not what was stored
        ├── MissingObject (KeyError)         1    no such object in the store, or it was damaged and has been removed
        ├── StoreError (RuntimeError)        1    the store cannot do its work: disk full, server away
        ├── NonFiniteLoss (RuntimeError)     1    the training loss is no number any more
        ├── CommitConflict (RuntimeError)    1    another process has committed the task, with other numbers
        ├── OutOfMemory (RuntimeError)       1    a step does not fit the device's memory
        ├── TrialFailed (RuntimeError)       1    a trial on Ray ended without its result
        ├── ContractViolation (ValueError)   1    a method does not keep what methods promise
        ├── RunsFailed (RuntimeError)        1    some runs of a job did not succeed
        └── Interrupted (RuntimeError)       130  the user stopped a job; it can be resumed

The built-in class in brackets is a base too, so code that knows nothing of ours (Ray's retries, `except KeyError`)
does the right thing. All arguments are in `args`: an exception survives pickling from one process to another.
What is no CtvrError is a fault of the program and ends in a traceback, but OSError, whose text is for users.
"""

from __future__ import annotations

from typing import ClassVar

from ctvr.orchestrator.redaction import redact


class CtvrError(Exception):
    """Base of the tree. Its text is one line that names what is wrong and what to do; it holds no secret.

    Attributes:
        status: exit status of a command that ends with it.
        is_permanent: the same would happen if the same were tried again, on whatever machine.
    """

    status: ClassVar[int] = 1
    is_permanent: bool = False

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(CtvrError, ValueError):
    """A mistake in what the user wrote. Its message is one line that names the setting and the remedy."""

    status = 2
    is_permanent = True


class TrackingUnavailable(ConfigError):
    """MLflow's server does not answer: a wrong address, or one that is away for a while."""


class UntrustedCode(ConfigError):
    """A file names a class that the user has not named. `name` is the class, `place` the file or record."""

    def __init__(self, name: str, place: str = "") -> None:
        super().__init__(name, place)
        self.name, self.place = self.args

    def __str__(self) -> str:
        return (
            f"{self.place or 'method'}: the class {self.name} is not named by this command, so its code is not run. "
            f"If you trust that code, add --trust {self.name}."
        )


class VideoError(CtvrError, ValueError):
    """One file cannot be used. `path` and `reason` say which and why."""

    is_permanent = True

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(str(path), reason)
        self.path, self.reason = self.args

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class IndexDisagrees(CtvrError, ValueError):
    """The decoder shows another frame than the index of a video lists; the argument is the second at which it does."""


class BadRecord(CtvrError, ValueError):
    """A record that can never be accepted; its text says why."""

    is_permanent = True


class ContractViolation(CtvrError, ValueError):
    """What a method does against its contract (`ctvr check-method`)."""

    is_permanent = True


class CorruptObject(CtvrError, ValueError):
    """The bytes of an object are not what was stored."""

    is_permanent = True


class MissingObject(CtvrError, KeyError):
    """No such object, or it was damaged and has been removed. `kind` and `key` say which."""

    def __init__(self, kind: str, key: str) -> None:
        super().__init__(kind, key)
        self.kind, self.key = kind, key

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}: no such object in the store"


class StoreError(CtvrError, RuntimeError):
    """The store cannot do its work (disk full, server away). It may be able to later."""


class NonFiniteLoss(CtvrError, RuntimeError):
    """The training loss is no number any more."""

    is_permanent = True


class CommitConflict(CtvrError, RuntimeError):
    """Another writer has committed the task, with other numbers: go on from the run's newest commit."""


class OutOfMemory(CtvrError, RuntimeError):
    """A step does not fit the memory of the device."""

    is_permanent = True


class TrialFailed(CtvrError, RuntimeError):
    """A trial ended without its result.

    Attributes:
        reason: one line.
        is_permanent: the same would happen again.
        traceback_and_log: the worker's traceback and the end of its log; empty if they could not be read.
    """

    def __init__(self, reason: str, is_permanent: bool = False, traceback_and_log: str = "") -> None:
        super().__init__(reason, is_permanent, traceback_and_log)
        self.reason, self.is_permanent, self.traceback_and_log = self.args

    def __str__(self) -> str:
        return self.reason


class RunsFailed(CtvrError, RuntimeError):
    """Runs were started and did not succeed; those that did are kept."""


class Interrupted(CtvrError, RuntimeError):
    """The user stopped a job; it can be resumed."""

    status = 130
