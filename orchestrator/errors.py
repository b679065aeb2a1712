"""Exceptions of this project, each with the exit status that it gives a command.

    Exception
    └── CtvrError                            1    one line for the user, printed without a traceback
        ├── ConfigError       (ValueError)   2    an invalid setting, option, file or folder
        │   ├── Mistakes                     2    all mistakes of one command, a line each
        │   ├── TrackingUnavailable          2    MLflow's server does not respond
        │   └── UntrustedCode                2    a file names a class that the user has not named
        ├── VideoError        (ValueError)   2    one video cannot be used
        ├── IndexDisagrees    (ValueError)   1    a decoded frame disagrees with the index of its video
        ├── RefusedPickle     (ValueError)   1    a pickle contains an object that is not allowed
        ├── BadRecord         (ValueError)   1    a tracking record that can never be accepted
        ├── ContractViolation (ValueError)   1    a method breaks the contract of `Method`
        ├── CorruptObject     (ValueError)   1    the bytes of an object differ from those stored
        ├── MissingObject     (KeyError)     1    an object is not in the store, or was damaged and removed
        ├── StoreError        (RuntimeError) 1    the store failed: disk full, server unreachable
        ├── NonFiniteLoss     (RuntimeError) 1    the training loss is NaN or infinite
        ├── CommitConflict    (RuntimeError) 1    another process has committed the task with different results
        ├── OutOfMemory       (RuntimeError) 1    a step does not fit in the device's memory
        ├── TrialFailed       (RuntimeError) 1    a Ray trial ended without a result
        ├── UserCodeFailed    (RuntimeError) 1    a user's method or plug-in raised an exception
        ├── RunsFailed        (RuntimeError) 1    some runs of a job failed
        └── Interrupted       (RuntimeError) 130  the user stopped a job; it can be resumed

The built-in class in brackets is also a base, so that other libraries (Ray's retries, `except KeyError`) handle these
errors correctly. All arguments are in `args`, so that an exception can be pickled between processes. Any other
exception is a bug and ends in a traceback, except OSError, which `os_error_text` describes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import ClassVar

from ctvr.orchestrator.console import printable
from ctvr.orchestrator.redaction import redact


class CtvrError(Exception):
    """Base of all our exceptions. Its text is one line with the problem and the remedy, without secrets.

    Attributes:
        status: exit status of a command that raises it.
        is_permanent: whether a retry would fail in the same way on any machine.
    """

    status: ClassVar[int] = 1
    is_permanent: bool = False

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(CtvrError, ValueError):
    """Invalid user input. Its text is one line, made of these parts; code must not parse it.

    Attributes:
        fault: what is wrong. It is the whole line if no other part is given.
        where: the setting, the option or the file, as the user names it.
        got: the value that was given; None if the fault names it.
        remedy: what to do, as a whole sentence.
        write: corrected arguments that replace the faulty ones, for example ("optim.epochs=2",); () if unknown. They
            are printed as the remedy if `remedy` is empty.
        settings: the settings that the fault concerns, the wrong one first; by default `where`.
        unknown: the name of a method, stream or setting that does not exist; "" for other faults.
    """

    status = 2
    is_permanent = True

    def __init__(
        self,
        fault: object = "",
        where: object = "",
        got: object = None,
        remedy: str = "",
        write: Sequence[str] = (),
        settings: Sequence[str] = (),
        unknown: str = "",
    ) -> None:
        super().__init__(str(fault), str(where), got, remedy, tuple(map(redact, write)), tuple(settings), unknown)
        self.fault, self.where, self.got, self.remedy, self.write, self.settings, self.unknown = self.args
        self.settings = self.settings or (self.where,)

    @property
    def described(self) -> str:
        """The parts `where`, `fault` and `got` as text, without the remedy."""
        said = f"{printable(self.where)}: {self.fault}" if self.where else self.fault
        return said if self.got is None else f"{said} (got {self.got!r:.200})"

    def __str__(self) -> str:
        return f"{self.described}. {self.advice}" if self.advice else self.described

    @property
    def advice(self) -> str:
        """The remedy, or the corrected arguments, as a whole sentence."""
        return self.remedy or (f"Use {' '.join(self.write)}." if self.write else "")

    def at(self, where: str) -> ConfigError:
        """Return a copy with another `where`; the corrections in `write` become values of that setting."""
        write = tuple(f"{where}={word.rpartition('=')[2]}" for word in self.write)
        return ConfigError(self.fault, where, self.got, self.remedy, write, (), self.unknown)


class Mistakes(ConfigError):
    """All mistakes in one command; `args` holds one line for each."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.args = lines


class TrackingUnavailable(ConfigError):
    """MLflow's server does not respond: its address is wrong, or it is down."""


class UntrustedCode(ConfigError):
    """A file names a class that the user has not named. `name` is the class, `place` the file or record."""

    def __init__(self, name: str, place: str = "") -> None:
        said = f"the class {name} is not named by this command, so its code is not run"
        super().__init__(said, place or "method", remedy=f"If you trust that code, add --trust {name}.")
        self.args = self.name, self.place = name, place


class VideoError(CtvrError, ValueError):
    """A video file cannot be used. `path` is the file, `reason` the cause."""

    status = 2  # invalid input, as in ConfigError
    is_permanent = True

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(str(path), reason)
        self.path, self.reason = self.args

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class IndexDisagrees(CtvrError, ValueError):
    """The decoder returned a frame that disagrees with the video's index; the argument is its time in seconds."""


class RefusedPickle(CtvrError, ValueError):
    """A pickle contains an object that is not allowed; the message names it."""


class BadRecord(CtvrError, ValueError):
    """A tracking record that can never be accepted; the message gives the reason."""

    is_permanent = True


class ContractViolation(CtvrError, ValueError):
    """A method breaks the contract of `Method` (`ctvr methods check`)."""

    is_permanent = True


class CorruptObject(CtvrError, ValueError):
    """The bytes of an object differ from those stored."""

    is_permanent = True


class MissingObject(CtvrError, KeyError):
    """An object is not in the store, or was damaged and removed. `kind` and `key` identify it."""

    def __init__(self, kind: str, key: str) -> None:
        super().__init__(kind, key)
        self.kind, self.key = kind, key

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}: no such object in the store"


class StoreError(CtvrError, RuntimeError):
    """The store failed (disk full, server unreachable). A retry may succeed."""


class NonFiniteLoss(CtvrError, RuntimeError):
    """The training loss is NaN or infinite."""

    is_permanent = True


class CommitConflict(CtvrError, RuntimeError):
    """Another writer has committed the task with different results; continue from the run's newest commit."""


class OutOfMemory(CtvrError, RuntimeError):
    """A step does not fit in the memory of the device."""

    is_permanent = True


class TrialFailed(CtvrError, RuntimeError):
    """A trial ended without a result.

    Attributes:
        reason: one line.
        is_permanent: whether a retry would fail in the same way.
        traceback_and_log: the worker's traceback and the end of its log; empty if they could not be read.
    """

    def __init__(self, reason: str, is_permanent: bool = False, traceback_and_log: str = "") -> None:
        super().__init__(reason, is_permanent, traceback_and_log)
        self.reason, self.is_permanent, self.traceback_and_log = self.args

    def __str__(self) -> str:
        return self.reason


class UserCodeFailed(CtvrError, RuntimeError):
    """A user's method or plug-in raised an exception; the text names its file and line."""

    is_permanent = True


class RunsFailed(CtvrError, RuntimeError):
    """Some runs failed; the results of the other runs are kept."""


class Interrupted(CtvrError, RuntimeError):
    """The user stopped a job; it can be resumed."""

    status = 130


# System error -> what it means for a path, and the remedy
_ALLOWED = ("access is not permitted", "Change its owner or mode, or choose another folder")
_SPACE = ("no space is left", "Free some space and run again")
_IN_THE_WAY = ("is a FIFO, a socket or a device, not a file", "Move it away and run again")
_OF_THE_SYSTEM = {
    errno.ENOENT: ("does not exist, or is a broken link", "Check the path, or remove the link"),
    errno.EEXIST: ("is a file or a link, not a folder", "Move it away and run again"),
    errno.ENOTDIR: ("is a file or is below a file, where a folder is needed", "Move that file away and run again"),
    errno.EISDIR: ("is a folder, not a file", "Move it away and run again"),
    errno.ENXIO: _IN_THE_WAY,
    errno.ENODEV: _IN_THE_WAY,
    errno.EINVAL: _IN_THE_WAY,
    errno.ELOOP: ("is a link to itself", "Remove it and run again"),
    errno.EACCES: _ALLOWED,
    errno.EPERM: _ALLOWED,
    errno.EROFS: ("is on a read-only file system", "Choose another folder"),
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: ("would exceed the limit of file sizes", "Raise it (`ulimit -f`), or choose another file system"),
    errno.EMFILE: ("cannot be opened, because too many files are open", "Raise the limit: ulimit -n 65536"),
    errno.ENAMETOOLONG: ("has too long a name", "Use a shorter one"),
    errno.EIO: ("cannot be read or written, because the disk reports an error", "Check it (`dmesg`)"),
    errno.ESTALE: ("is no longer on the file server", "Mount it again and run again"),
}

NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM, *NO_SPACE}  # such a folder can still be read


def os_error_text(error: OSError) -> str:
    """Describe a system error in one line: the path, what is wrong with it, and the remedy."""
    what, remedy = _OF_THE_SYSTEM.get(error.errno or 0, ("", ""))
    if isinstance(error.filename, (str, bytes, os.PathLike)):
        return f"{printable(os.fsdecode(error.filename))}: {what or error.strerror}. {remedy or 'Check the path'}."
    is_of_the_disk = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.EIO)
    return f"{error.strerror}. {remedy}." if is_of_the_disk else str(error)  # for example a write to an open file
