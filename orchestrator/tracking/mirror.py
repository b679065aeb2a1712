"""Mirrors of a run's metrics on the local disk: CSV, TensorBoard, Weights & Biases, trackio, or a class of yours.

MLflow is the record; a mirror may lose values and must never stop or slow a run. A separate thread writes the values.
Rows that do not fit into its queue are dropped, and its first error ends the mirror with one log line. Mirrors do not
use the network: W&B runs offline (`wandb sync` uploads), and the other mirrors write files.

A class of another package has the members of `Writer`. It is an entry point `ctvr.mirrors`, or `MODULE:CLASS`.
"""

from __future__ import annotations

import csv
import importlib
import logging
import os
import queue
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.settings.tracking_config import MIRRORS

log = logging.getLogger(__name__)
ROOM = 10_000  # capacity of the queue, in rows
PATIENCE = 10.0  # seconds to wait for the thread at the end of a run
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}
Row = tuple[int, dict[str, float], int | None]  # the arguments of `Writer.write`


class Writer(Protocol):
    """Writes the rows of one run. Its class is called with folder, run, project (the stream) and settings."""

    def write(self, step: int, values: Mapping[str, float], task: int | None) -> None:
        """Write named values.

        Args:
            step: optimizer steps so far; in a row with `task`, equal to it.
            task: tasks learned so far, for values that are measured after a task; None for values of training.
        """

    def end(self) -> None:
        """Close the files after the last row of the run."""


def check_mirror(name: str) -> None:
    """Check that the package of a mirror is installed, before anything is trained.

    Raises:
        ConfigError: if the package is missing, the name is unknown, or the class lacks a member of `Writer`.
    """
    made = MIRRORS.load(name)
    missing = [each for each in ("write", "end") if isinstance(made, type) and not hasattr(made, each)]
    if missing:
        raise ConfigError(f"{name} lacks the method {missing[0]}", MIRRORS.setting, remedy="Add it (docs/metrics.md).")
    if name in PACKAGES and find_spec(PACKAGES[name]) is None:
        raise ConfigError(
            f"{name} needs a package that is not installed. Run `pip install {PACKAGES[name]}`, or omit the setting.",
            "tracking.mirror",
        )


class Mirror:
    """Queues rows of a run and writes them in a separate thread.

    Args:
        kind: the setting `tracking.mirror`.
        folder: folder for the mirror's files.
        name: name of the run.
        project: name of the stream.
        settings: settings of the run by dotted name.
    """

    def __init__(self, kind: str, folder: Path, name: str, project: str, settings: Mapping[str, Any]) -> None:
        self._rows: queue.Queue[Row | None] = queue.Queue(ROOM)
        self._left_out = 0
        self._is_over = kind == "none"
        self._thread: threading.Thread | None = None
        if not self._is_over:
            given = (kind, folder, name, project, dict(settings))
            self._thread = threading.Thread(target=self._work, args=given, name="mirror", daemon=True)
            self._thread.start()

    def log(self, rows: Mapping[int, Mapping[str, float]], task: int | None = None) -> None:
        """Queue the values of some steps; never waits, never raises. See `Writer.write` for `task`."""
        for step, values in rows.items():
            if self._is_over:
                return
            try:
                self._rows.put_nowait((step, dict(values), task))
            except queue.Full:
                self._left_out += 1

    def close(self) -> None:
        """Write the queued rows, for at most `PATIENCE` seconds."""
        if self._thread is None:
            return
        if self._left_out:
            log.warning(
                "tracking.mirror: %d rows did not fit into the queue and were dropped; MLflow has them", self._left_out
            )
        try:
            self._rows.put(None, timeout=PATIENCE)
        except queue.Full:
            self._is_over = True
        self._thread.join(PATIENCE)
        self._thread = None

    def _work(self, kind: str, folder: Path, name: str, project: str, settings: Mapping[str, Any]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writer: Writer = (MIRRORS.load(kind) or WRITERS[kind])(folder, name, project, settings)
            while not self._is_over and (row := self._rows.get()) is not None:
                writer.write(*row)
            writer.end()
        except BaseException as error:  # a library may even call exit()
            lines = str(error).splitlines() or [type(error).__name__]
            log.warning(
                "tracking.mirror: %s has stopped (%s); the run continues, and MLflow has all data", kind, lines[0]
            )
        finally:
            self._is_over = True


class _Csv:
    """A file `<stream>/<run>.csv` with a line for each value. A resumed run writes its earlier values again."""

    def __init__(self, folder: Path, name: str, project: str, settings: Mapping[str, Any]) -> None:
        place = folder / project / f"{name}.csv"
        place.parent.mkdir(parents=True, exist_ok=True)
        self.name, self.file = name, place.open("w", encoding="utf-8", newline="")
        self.lines = csv.writer(self.file, lineterminator="\n")
        self.lines.writerow(("run", "step", "task", "name", "value"))

    def write(self, step: int, values: Mapping[str, float], task: int | None) -> None:
        place = (step, "") if task is None else ("", task)
        self.lines.writerows((self.name, *place, key, value) for key, value in values.items())
        self.file.flush()

    def end(self) -> None:
        self.file.close()


class _TensorBoard:
    def __init__(self, folder: Path, name: str, project: str, settings: Mapping[str, Any]) -> None:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self.writer = writer(log_dir=str(folder / project / name))
        self.writer.add_text("settings", "\n".join(f"    {key}={value}" for key, value in settings.items()))

    def write(self, step: int, values: Mapping[str, float], task: int | None) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)

    def end(self) -> None:
        self.writer.close()


class _Steps:
    """Base class for W&B and trackio, which count rows themselves, so that the step is logged as a value."""

    module: Any

    def write(self, step: int, values: Mapping[str, float], task: int | None) -> None:
        self.module.log({**values, "step": step})

    def end(self) -> None:
        self.module.finish()


class _Wandb(_Steps):
    def __init__(self, folder: Path, name: str, project: str, settings: Mapping[str, Any]) -> None:
        self.module = importlib.import_module("wandb")
        given = {"project": project, "name": name, "config": dict(settings), "dir": str(folder)}
        quiet = self.module.Settings(silent=True)
        self.module.init(**given, mode="offline", reinit=True, settings=quiet)


class _Trackio(_Steps):
    def __init__(self, folder: Path, name: str, project: str, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(folder))  # read when trackio is imported
        self.module = importlib.import_module("trackio")
        self.module.init(project=project, name=name, config={key: str(value) for key, value in settings.items()})


WRITERS: dict[str, Any] = {"csv": _Csv, "tensorboard": _TensorBoard, "wandb": _Wandb, "trackio": _Trackio}
