"""Metrics, runs and table rows that follow from the ranks of a bundle, by the functions that tables use.

Shapes: T tasks, Q queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from ctvr.orchestrator.bundles.bundle import ALL, OWN, Bundle
from ctvr.orchestrator.learning.evaluation import metrics
from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.tables.build import PARAMETERS, collect
from ctvr.orchestrator.tables.significance import Ranks
from ctvr.orchestrator.tables.table import Value
from ctvr.orchestrator.tables.table_columns import PRINTED
from ctvr.orchestrator.tracking.run_record import RunRecord, number

Histories = dict[str, list[tuple[int, float]]]  # metric -> (number of learned tasks, value)
# Tags of a run that its bundle contains: those that tables read, and those that say what was run
TAGS = (
    *("method", "stream", "split", "select", "select_split", "protocol", "presets", "recommended_epochs", "complete"),
    *("transductive", "is_joint", "keeps_videos", "trains_on_searched", "note", "mark", "choice", "number", "row"),
    *("table", "stream_digest", "stream_content", "frames", "commit"),
)


@dataclass(frozen=True)
class Positions:
    """Positions of N captions, as in learning/evaluation/ranking.py, without torch: counts (N,) of other videos."""

    better: np.ndarray
    equal: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray) -> Positions:
        """Return the positions of counts (2, N) of a bundle."""
        return cls(*counts.astype(float))

    def __len__(self) -> int:
        return len(self.better)

    @property
    def rank(self) -> np.ndarray:
        return 1 + self.better + self.equal / 2

    def chance(self, k: int) -> np.ndarray:
        """Return P(rank <= k) (N,), if candidates of equal scores are ordered at random."""
        return np.clip((k - self.better) / (1 + self.equal), 0, 1)


def histories(ranks: Mapping[str, np.ndarray], tasks: np.ndarray, protocol: str) -> Histories:
    """Return the metrics of a run after each task that follow from its ranks.

    Args:
        ranks: gallery -> (2, T, Q) counts.
        tasks: (Q,) 0-based task of each query.
        protocol: protocol of the stream, `ctvr` or `cvlm`.
    """
    found: Histories = {}
    matrices: dict[str, list[list[float]]] = {ALL: [], OWN: []}
    for done in range(1, int(tasks.max()) + 2):
        now: dict[str, float] = {}
        for gallery, counts in ranks.items():
            after = counts[:, done - 1]
            row = [metrics.recall(Positions.of(after[:, tasks == task]), 1) for task in range(done)]
            matrices[gallery].append(row)
            suffix = "" if gallery == ALL else "_own"
            now |= {f"task_{task:02d}/t2v/r1{suffix}": value for task, value in enumerate(row, 1)}
        if ALL in ranks:
            summary = metrics.summary(Positions.of(ranks[ALL][:, done - 1][:, tasks < done]))
            now |= {f"stream/t2v/{name}": value for name, value in summary.items()}
        now |= metrics.history(matrices[OWN], matrices[ALL], protocol)
        for name, value in now.items():
            found.setdefault(name, []).append((done, value))
    return found


def records_of(bundle: Bundle) -> list[RunRecord]:
    """Return the runs of a bundle as they were recorded, with the metrics that follow from their ranks."""
    found = []
    for place, run in enumerate(bundle.about["runs"]):
        tags = {f"ctvr.{name}": run["tags"][f"ctvr.{name}"] for name in TAGS if f"ctvr.{name}" in run["tags"]}
        own, tasks = {name: each[place] for name, each in bundle.ranks.items()}, bundle.tasks_of(place)
        known: Histories = histories(own, tasks, tags.get("ctvr.protocol", ""))
        if run["parameters"] is not None:
            known[PARAMETERS] = [(int(tasks.max()) + 1, float(run["parameters"]))]
        found.append(RunRecord(run["id"], run["name"], dict(run["settings"]), known, tags, "FINISHED", "", place))
    return found


def final_ranks(bundle: Bundle) -> dict[str, Ranks]:
    """Return the ranks of each run after the last task, in the gallery of the protocol, by the id of the run."""
    found = {}
    for place, run in enumerate(bundle.about["runs"]):
        gallery = OWN if run["tags"].get("ctvr.protocol") == "cvlm" else ALL
        last = bundle.ranks[gallery][place, :, -1].tolist()
        of = {query: Rank(*counts) for query, *counts in zip(bundle.about["queries"], *last)}
        found[run["id"]] = Ranks(of, dict(zip(bundle.about["queries"], bundle.tasks_of(place).tolist())))
    return found


def _is_of_ranks(key: str, value: Value) -> bool:
    """Return whether a cell is known and follows from ranks, not from costs, such as seconds."""
    return math.isfinite(value.mean) and not (key in PRINTED and PRINTED[key][1].startswith("cost/"))


def table_of(bundle: Bundle) -> list[dict[str, Any]]:
    """Return the rows of the table of a bundle as JSON values: cells, and the comparison with the best row."""
    return [
        {
            "label": row.label,
            "runs": list(row.runs),
            "seeds": list(row.seeds),
            "cells": {
                key: [value.mean, number(value.std)] for key, value in row.values.items() if _is_of_ranks(key, value)
            },
            "is_best": row.is_reference,
            "vs_best": None if row.vs_best is None else [number(each) for each in astuple(row.vs_best)],
        }
        for row in collect(records_of(bundle), final_ranks(bundle), has_footnotes=False)
    ]
