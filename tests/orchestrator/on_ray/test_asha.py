"""Asynchronous searches: whatever is interrupted goes on from the journal alone. Without a cluster."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher

from orchestrator.errors import ConfigError
from orchestrator.on_ray.asha import Asynchronous, AsynchronousSearch
from orchestrator.on_ray.plan import GAIN, SearchConfig, SearchSpace, TrialPlan
from orchestrator.on_ray.schedulers import TaskHalving
from orchestrator.on_ray.search import count_trials, point_searcher
from orchestrator.on_ray.waves import Journal

SPACE = SearchSpace(
    {"method.lr": tune.loguniform(1e-7, 1e-5), "method.layers": tune.choice([1, 2, 4])},
    {},
    {"method.lr": 1e-6, "method.layers": 4},
)
TASKS, PLAN = 5, TrialPlan("s", "/nowhere", "", "", None, "/nowhere", {"method": "lora"})


class Cluster:
    """What Ray Tune does with a search: `room` trials at once, whose reports arrive in an order that `seed` decides."""

    def __init__(
        self,
        file: Path | None,
        search: SearchConfig,
        room: int = 2,
        rows: tuple[str, ...] = ("",),
        space: SearchSpace = SPACE,
    ) -> None:
        journal = Journal(file, "sources")
        self.searches = {
            row: Asynchronous(
                partial(point_searcher, search, space, TASKS),
                search,
                TASKS,
                dict,
                count_trials(search, space),
                journal,
                row,
            )
            for row in rows
        }
        self.searcher = AsynchronousSearch(self.searches, dict.fromkeys(rows, PLAN))
        self.limiter = ConcurrencyLimiter(self.searcher, max_concurrent=room)
        self.scheduler = TaskHalving(search, TASKS, rows)
        for row in rows:
            self.scheduler.remember(self.searcher.scores(row), row)
        self.trained: list[tuple[str, int, int]] = []  # row, number, task

    def run(self, seed: int, most: int = 10**6, fails: int = 0) -> None:
        """Until nothing is left, or `most` tasks were trained and the driver is killed; trial `fails` fails at once."""
        chance, alive, begun = random.Random(seed), {}, 0
        while True:
            suggested = self.limiter.suggest(f"{seed}-{begun}")
            if isinstance(suggested, Mapping):
                row, number = suggested["row"], suggested["number"]
                scores = self.searches[row].trials[number - 1].scores
                alive[f"{seed}-{begun}"] = [suggested, max(scores, default=0)]
                begun += 1
                continue
            if not alive or len(self.trained) >= most:
                assert suggested == Searcher.FINISHED or alive
                return
            trial_id = chance.choice(list(alive))
            config, done = alive[trial_id]
            if config["number"] == fails:
                self.limiter.on_trial_complete(trial_id, error=True)
                del alive[trial_id]
                continue
            alive[trial_id][1] = task = done + 1
            self.trained.append((config["row"], config["number"], task))
            point = config["run"]["settings"]
            gain = 1e6 * point["method.lr"] * task - point["method.layers"]
            result = {"task": task, GAIN: gain, "reads": "method.lr,method.layers"}
            decision = self.scheduler.on_trial_result(None, SimpleNamespace(config=config), result)
            if decision == "STOP" or task == TASKS:
                self.limiter.on_trial_complete(trial_id, result)
                del alive[trial_id]
            else:
                self.limiter.on_trial_result(trial_id, result)


def told(search: Asynchronous) -> list[tuple[Any, ...]]:
    study = search.searcher.inner._ot_study
    return [(t.state.name, t.params, t.intermediate_values, t.values) for t in study.trials]


@pytest.mark.parametrize("searcher", ["tpe", "random", "grid"])
def test_a_search_that_is_killed_goes_on_with_its_points_and_trains_nothing_twice(tmp_path, searcher):
    space = SearchSpace({**SPACE.space, "method.lr": tune.choice([1e-7, 1e-6, 3e-6])}, {}, {})
    space = space if searcher == "grid" else SPACE
    search, file = SearchConfig(trials=9, searcher=searcher, scheduler="asha"), tmp_path / "journal.json"
    lives, begun = [], []
    for number, most in enumerate((7, 9, 1000)):
        lives.append(Cluster(file, search, space=space))
        assert [trial.point for trial in lives[-1].searches[""].trials] == begun
        lives[-1].run(number, most=most)
        begun = [trial.point for trial in lives[-1].searches[""].trials]
        assert lives[-1].searcher.outcome("", 0.0).is_interrupted == (most < 1000)
    made = lives[-1].searches[""]
    trained = [each for life in lives for each in life.trained]
    assert len(trained) == len(set(trained)) == sum(max(trial.scores) for trial in made.trials)
    assert [trial.number for trial in made.trials] == list(range(1, 10))
    outcome = lives[-1].searcher.outcome("", 0.0)
    assert (outcome.trials, outcome.unfinished, outcome.failed) == (9, 0, 0)
    assert outcome.complete >= 1
    assert outcome.stopped >= 1
    if searcher != "grid":  # the searcher of the last life knows all that those before it were told
        learned = {str(params): (state, values) for state, params, values, _ in told(made) if state != "FAIL"}
        expected = {
            str(trial.point): ("PRUNED" if trial.stopped else "COMPLETE", trial.scores) for trial in made.trials
        }
        assert learned == expected


def test_a_finished_search_is_not_begun_again_and_a_failed_trial_is(tmp_path):
    search, file = SearchConfig(trials=4, scheduler="asha"), tmp_path / "journal.json"
    first = Cluster(file, search)
    first.run(0, fails=3)
    assert (first.searcher.outcome("", 0.0).failed, first.searches[""].has_begun_all) == (1, True)
    second = Cluster(file, search)
    assert [trial.number for trial in second.searches[""].waiting] == [3]
    second.run(1)
    assert {number for _, number, _ in second.trained} == {3}
    third = Cluster(file, search)
    assert third.searches[""].has_begun_all
    assert third.searcher.outcome("", 0.0) == second.searcher.outcome("", 0.0)


def test_rows_take_turns_and_learn_from_their_own_trials(tmp_path):
    search = SearchConfig(trials=6, scheduler="asha")
    both, alone = Cluster(None, search, 1, ("a", "b")), Cluster(None, search, 1)
    both.run(0), alone.run(0)
    begun = list(dict.fromkeys((row, number) for row, number, _ in both.trained))
    assert begun == [(row, number) for number in range(1, 7) for row in "ab"]
    assert told(both.searches["a"]) == told(both.searches["b"]) == told(alone.searches[""])


def test_what_other_sources_reported_is_not_believed_and_points_of_another_space_are_refused(tmp_path):
    search, file = SearchConfig(trials=3, scheduler="asha"), tmp_path / "journal.json"
    Cluster(file, search).run(0)
    other = Asynchronous(partial(point_searcher, search, SPACE, TASKS), search, TASKS, dict, 3, Journal(file, "new"))
    assert other.trials == []
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    for line in kept[1:]:
        line["about"]["point"]["method.layers"] = 8  # no choice any more
    file.write_text("\n".join(map(json.dumps, kept)))
    with pytest.raises(ConfigError, match=r"journal.json: trial 1 is no point of what is searched \(.*new sweep"):
        Cluster(file, search)
