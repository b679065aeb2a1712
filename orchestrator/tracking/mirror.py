"""The numbers of a run shown elsewhere, too: TensorBoard, Weights & Biases or trackio, on this machine's disk alone.

MLflow is the record; a mirror may lose numbers and may never stop or slow a run: a thread of its own writes them, what
does not fit its queue is left out, and its first error ends it with one line. Nothing is sent anywhere: W&B runs
offline (`wandb sync` uploads), trackio and TensorBoard write files.
"""

from __future__ import annotations

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

log = logging.getLogger(__name__)
ROOM = 10_000  # rows that wait
PATIENCE = 10.0  # seconds that the end of a run waits for the thread
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}
Row = tuple[int, dict[str, float]]  # step, numbers


class Writer(Protocol):
    """What a mirror writes with, in its own thread."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def end(self) -> None: ...


def check_mirror(name: str) -> None:
    """Refuse a mirror whose package is not here, before anything is trained.

    Raises:
        ConfigError: naming the package.
    """
    if name != "none" and find_spec(PACKAGES[name]) is None:
        raise ConfigError(f"tracking.mirror: {name} needs a package: pip install {PACKAGES[name]}. Or leave it out.")


class Mirror:
    """Takes rows from the run's thread at once, and writes them in its own.

    Args:
        kind: of PACKAGES, or none.
        folder: below which its files lie.
        name: of the run.
        project: the stream.
        settings: flat and dotted.
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

    def log(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Take the numbers of steps; never waits, never raises."""
        for step, values in rows.items():
            if self._is_over:
                return
            try:
                self._rows.put_nowait((step, dict(values)))
            except queue.Full:
                self._left_out += 1

    def close(self) -> None:
        """Write what waits, for at most `PATIENCE` seconds."""
        if self._thread is None:
            return
        if self._left_out:
            log.warning("tracking.mirror: %d rows did not fit and were left out; MLflow has them", self._left_out)
        try:
            self._rows.put(None, timeout=PATIENCE)
        except queue.Full:
            self._is_over = True
        self._thread.join(PATIENCE)
        self._thread = None

    def _work(self, kind: str, folder: Path, name: str, project: str, settings: Mapping[str, Any]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writer = WRITERS[kind](folder, name, project, settings)
            while not self._is_over and (row := self._rows.get()) is not None:
                writer.write(*row)
            writer.end()
        except BaseException as error:  # a library may even call exit()
            lines = str(error).splitlines() or [type(error).__name__]
            log.warning("tracking.mirror: %s has stopped (%s); the run goes on, MLflow has everything", kind, lines[0])
        finally:
            self._is_over = True


class _TensorBoard:
    def __init__(self, folder: Path, name: str, project: str, settings: Mapping[str, Any]) -> None:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self.writer = writer(log_dir=str(folder / project / name))
        self.writer.add_text("settings", "\n".join(f"    {key}={value}" for key, value in settings.items()))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)

    def end(self) -> None:
        self.writer.close()


class _Steps:
    """W&B and trackio count rows by themselves: the step is a number of the row."""

    module: Any

    def write(self, step: int, values: Mapping[str, float]) -> None:
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
        os.environ.setdefault("TRACKIO_DIR", str(folder))  # read when it is imported
        self.module = importlib.import_module("trackio")
        self.module.init(project=project, name=name, config={key: str(value) for key, value in settings.items()})


WRITERS: dict[str, Any] = {"tensorboard": _TensorBoard, "wandb": _Wandb, "trackio": _Trackio}
