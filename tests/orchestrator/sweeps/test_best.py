"""`best-STREAM` is the run with the best result on validation videos, and changes only by such results."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import pytest

from ctvr.orchestrator.jobs.find_model import find_run
from ctvr.orchestrator.sweeps import best
from ctvr.orchestrator.tables.significance import Ranks
from ctvr.orchestrator.tracking.run_record import RunRecord

VAL, TEST = {"evaluation.split": "val"}, {"evaluation.split": "test"}


class Recorded:
    """A tracker of runs that are not in MLflow; of their 300 captions a share equal to the run's R@1 has rank 1."""

    def __init__(self) -> None:
        self.runs: list[RunRecord] = []

    def existing_tracker(self) -> Recorded:
        return self

    def find_runs(self, stream: str | None = None, tags: Mapping[str, str] | None = None) -> list[RunRecord]:
        return [run for run in self.runs if all(run.tags.get(k) == v for k, v in (tags or {}).items())]

    def find_sweep(self, name: str) -> None:
        return None

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        next(run for run in self.runs if run.run_id == run_id).tags.update(tags)

    def ranks(self, run_id: str) -> Ranks:
        run = next(run for run in self.runs if run.run_id == run_id)
        order = np.random.default_rng(zlib.crc32(run_id.encode())).permutation(300)
        first = 3 * run.metrics[best.R1][-1][1]
        return Ranks({f"v{n}#0": 1.0 if place < first else 5.0 for n, place in enumerate(order)}, {})


@pytest.fixture
def execution(monkeypatch) -> Recorded:
    made = Recorded()
    monkeypatch.setattr(best, "read_ranks", lambda tracker, run_id: tracker.ranks(run_id))
    return made


def add(execution, name, lr, r1, seed=1, split=TEST, method="clip4clip", **tags) -> RunRecord:
    settings = {"method": method, "stream": "few", "method.lr": lr, "seed": str(seed), **split}
    tags = {"ctvr.method": method, "ctvr.stream": "few", "ctvr.complete": "true", **tags}
    execution.runs.append(
        RunRecord(name, name, settings, {best.R1: [(2, r1)]}, tags, "FINISHED", "", len(execution.runs))
    )
    return execution.runs[-1]


def confirm(execution, lr, r1):
    for seed in (11, 12, 13):
        add(execution, f"confirm-{lr}-{seed}", lr, r1 + seed / 10, seed, VAL, **{"ctvr.confirms": "s"})


def test_the_best_moves_by_validation_videos_and_not_by_the_test_score(execution):
    confirm(execution, "1e-6", 20.0), confirm(execution, "1e-5", 22.0), confirm(execution, "1e-4", 60.0)
    first, lucky, better = (
        add(execution, f"final-{lr}", lr, r1) for lr, r1 in (("1e-6", 30), ("1e-5", 90), ("1e-4", 40))
    )
    assert best.promote(execution, first) == (True, "best-few: final-1e-6 (the first run that a search chose)")
    is_best, said = best.promote(execution, lucky)
    assert not is_best
    assert said.startswith("best-few: final-1e-6 (final-1e-5 against final-1e-6: 2.00 [")
    assert "on validation videos, 3 and 3 seeds" in said
    assert find_run("best-few", execution).name == "final-1e-6"
    is_best, said = best.promote(execution, better)
    assert is_best
    assert said.startswith("best-few: final-1e-4 (final-1e-4 against final-1e-6: 40.00 [")
    found = find_run("best-few", execution)
    assert found.name == "final-1e-4"
    assert found.tags[best.BY] in said


def test_runs_chosen_on_other_videos_are_not_compared(execution):
    confirm(execution, "1e-6", 20.0)
    assert best.promote(execution, add(execution, "final", "1e-6", 30.0))[0]
    is_best, said = best.promote(execution, add(execution, "other", "1e-3", 95.0))
    assert (is_best, said) == (
        False,
        "best-few: final (other was not selected on the same videos, so the two are not compared)",
    )
    assert best.promote(execution, add(execution, "again", "1e-6", 29.0, seed=2))[0]  # the same settings, trained again
    assert find_run("best-few", execution).name == "again"


def test_validation_results_decide_without_a_confirmation(execution):
    for lr, r1 in (("1e-6", 20.0), ("1e-5", 70.0)):
        add(execution, f"trial-{lr}", lr, r1, split=VAL, **{"ctvr.trial": lr})
    old, new = (add(execution, f"final-{lr}", lr, 30.0) for lr in ("1e-6", "1e-5"))
    assert best.promote(execution, old)[0]
    assert not best.promote(execution, new)[0], "one seed each shows no spread"
    assert [run.name for run in best.evidence(new, execution.find_runs())] == ["trial-1e-5"]
    confirm(execution, "1e-6", 20.0), confirm(execution, "1e-5", 50.0)
    assert {run.name[:7] for run in best.evidence(new, execution.find_runs())} == {"confirm"}
    assert best.promote(execution, new)[0]


def test_a_run_of_a_method_that_is_gone_does_not_break_the_best(execution, caplog):
    add(execution, "gone", "1", 99.0, method="anchor:Anchor")
    kept = add(execution, "kept", "1e-6", 30.0)
    assert find_run("best-few", execution).name == "kept"
    assert "no search has chosen" in caplog.text
    best.promote(execution, kept)
    execution.runs[0].tags[best.SINCE] = "9e9"  # it was the best where it could be imported
    assert find_run("best-few", execution).name == "kept"
