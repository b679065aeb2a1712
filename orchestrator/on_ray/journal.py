"""Trials of a search, and the journal of their results, a file on the driver's disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.output_dir import publish

log = logging.getLogger(__name__)


@dataclass
class HalvingTrial:
    """Trial of a search: a suggested point and its results."""

    number: int  # from 1, in the order of suggestions
    point: Settings
    settings: Settings  # all settings that affect the result, including this point's
    name: str  # id for the searcher
    scores: dict[int, tuple[float, ...]] = field(default_factory=dict)  # task or epoch -> value of each objective
    reads: tuple[str, ...] = ()  # names of the settings that were read during the run
    reused: int = 0  # number of tasks that another run trained
    failed: bool = False
    stopped: int = 0  # rung (task or epoch) at which it was stopped; 0 if it was not

    @property
    def label(self) -> str:
        """Return a name that is equal in every execution of the sweep; it identifies the trial's records."""
        return f"{self.number:02d}-{digest_of(self.settings)[:6]}"

    @property
    def is_alive(self) -> bool:
        return not self.failed and not self.stopped

    def record(self, task: int, values: tuple[float, ...], result: Mapping[str, Any], is_last: bool) -> None:
        """Record the objectives that the trial reported after a task or epoch; after the last, also its reads."""
        self.scores[task] = values
        self.reused = int(result.get("reused", 0))
        if is_last:
            self.reads = tuple(filter(None, str(result.get("reads", "")).split(",")))


class Journal:
    """Results of a sweep's trials, in a file that survives an interruption.

    The first line (JSON) holds the digest of the code. Each further line holds the results of one trial; the last line
    of a trial counts. The cost per trial does not grow with the number of trials.

    Args:
        file: path of the file; if None, results are not stored.
        sources: digest of the code. Results of other code are ignored, as its commits are.
    """

    def __init__(self, file: Path | None, sources: str = "") -> None:
        self.file, self.sources = file, sources
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}
        self._is_begun = False  # whether this process has written the file
        if file is not None and file.is_file():
            self._load(file)

    def _load(self, file: Path) -> None:
        first, *lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
        try:
            kept = dict(json.loads(first))
        except (ValueError, TypeError, RecursionError):  # partial lines, for example after a power failure
            log.warning("%s is damaged: trials run again, but adopt their finished tasks", file)
            return
        if kept.get("sources") != self.sources:
            log.warning(
                "%s was written by another version of the code, so it is not used. The sweep proposes its trials again "
                "with the brackets or the lag of its plan, and reuses finished tasks whose keys are equal.",
                file,
            )
            return
        for line in lines:
            try:
                entry = json.loads(line)
                row, label, about = str(entry["row"]), str(entry["label"]), dict(entry["about"])
                _parse_results(about)
                int(about.get("stopped", 0))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                continue  # empty, truncated or damaged: the trial runs again, but adopts its finished tasks
            self.rows.setdefault(row, {})[label] = about

    def read(self, row: str, trial: HalvingTrial, is_final: bool = False) -> None:
        """Set a trial's results from the journal; with `is_final`, also its stop, which is not decided again."""
        about = self.rows.get(row, {}).get(trial.label, {})
        trial.scores, trial.reads, trial.reused = _parse_results(about)
        trial.stopped = int(about.get("stopped", 0)) if is_final else 0

    def write(self, row: str, trial: HalvingTrial) -> None:
        about = {"number": trial.number, "point": trial.point, "stopped": trial.stopped}
        about |= {"scores": trial.scores, "reads": trial.reads, "reused": trial.reused}
        self.rows.setdefault(row, {})[trial.label] = about
        if self.file is None:
            return
        if not self._is_begun:  # the file of an earlier process may end in a partial line
            self._begin(self.file)
            self._is_begun = True
            return
        with self.file.open("a", encoding="utf-8") as file:
            file.write(_line(row, trial.label, about))

    def _begin(self, file: Path) -> None:
        lines = [_line(row, label, about) for row, trials in self.rows.items() for label, about in trials.items()]
        file.parent.mkdir(parents=True, exist_ok=True)
        publish(file, "".join([json.dumps({"sources": self.sources}) + "\n", *lines]).encode())


def _parse_results(about: Mapping[str, Any]) -> tuple[dict[int, tuple[float, ...]], tuple[str, ...], int]:
    """Return the scores, the names of the settings that were read, and the number of tasks that another run trained."""
    scores = {int(task): tuple(map(float, values)) for task, values in about.get("scores", {}).items()}
    return scores, tuple(map(str, about.get("reads", ()))), int(about.get("reused", 0))


def _line(row: str, label: str, about: Mapping[str, Any]) -> str:
    return json.dumps({"row": row, "label": label, "about": about}) + "\n"
