"""Reuse of tasks is sound: for every method, a setting that a task did not read cannot change the task.

For every method one run records the settings that it reads. Then every setting that was not read from the first task on
gets another value: up to the task that reads it, all weights, galleries and metrics must be bit-identical. (A setting
that was read is part of the key, so that nothing is shared between its values.)
"""

import typing
from dataclasses import replace
from typing import Any, Literal

import pytest

from ctvr.methods import METHODS, find_method
from ctvr.methods.settings import groups_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.keys.prefix_reuse import AccessLog
from ctvr.orchestrator.keys.run_key import NON_IDENTITY_SETTINGS
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.run_state import MEASURED
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.experiment import GROUPS
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream

TASKS = 2
# Of what the machine does with the same numbers, and of other files
LEFT_ALONE = {
    *NON_IDENTITY_SETTINGS,
    "backbone.name",
    "data.decoder",
    "data.image_size",
    "workers",
    "threads",
    "precision",
}


def others(hint: Any, value: Any) -> list[Any]:
    """Return other values for a setting of this type, some of which may be refused."""
    options = [
        o
        for part in (hint, *typing.get_args(hint))
        if typing.get_origin(part) is Literal
        for o in typing.get_args(part)
    ]
    if options:
        return [option for option in options if option != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(1, value - 1), 2 * value]
    if isinstance(value, float):
        return [0.5 * value, 1.5 * value] if value else [0.1, 1.0]
    return []


def hints_of(experiment) -> dict[str, Any]:
    configs = {group: getattr(experiment, group) for group in GROUPS} | {"method": experiment.method}
    if experiment.base is not None:
        configs["base"] = experiment.base
    return {name: hint for prefix, config in configs.items() for name, hint in hints_within(config, prefix).items()}


def hints_within(config: Any, prefix: str) -> dict[str, Any]:
    """Return the types of all settings of a dataclass; those of a group are those of the variant that it holds."""
    found = {f"{prefix}.{name}": hint for name, hint in typing.get_type_hints(type(config)).items()}
    for name, variants in groups_of(type(config)).items():
        of_group = hints_within(getattr(config, name), f"{prefix}.{name}")
        found |= {**of_group, f"{prefix}.{name}.name": Literal[tuple(variants)]}
    return found


def commits_of(experiment, places, stream) -> list[tuple[Any, ...]]:
    """Return the results of each finished task, without times: digests are part of the objects' names."""
    result = execute(experiment, places, stream=stream, reuse=False)
    commits = Commits(places.open_store(), result.key)
    found = []
    for done in range(1, TASKS + 1):
        commit = places.open_store().get_json("commits", f"{result.key}/task_{done:03d}")
        objects = [name.rpartition("-")[2] for name in (commit["weights"], *commit["galleries"])]
        record = {name: value for name, value in commit["record"].items() if name not in MEASURED}
        found.append((objects, record, set(commits.settings_read(done))))
    return found


def check(method: str, manifest: str, runs, sample: int | None = None) -> int:
    """Change every late setting of a method, or the first `sample` that can be changed; return their number."""
    stream, places = load_stream(manifest, runs), RunPaths(runs)
    stream = replace(stream, tasks=stream.tasks[:TASKS])
    given = {"method": method, "stream": manifest, "optim.epochs": 1}
    if method == "zscl":
        given["method.average_every"] = 1
    experiment = resolve(given, stream.settings)
    base = commits_of(experiment, places, stream)
    hints = hints_of(experiment)
    late = sorted(set(experiment.settings) - base[0][2] - LEFT_ALONE)
    flipped = 0
    for name in late:
        if flipped == sample:
            break
        for value in others(hints[name], experiment.settings[name]):
            try:
                changed = resolve({**given, name: value}, stream.settings)
            except ConfigError:
                continue
            again = commits_of(changed, places, stream)
            for done, (before, after) in enumerate(zip(base, again), 1):
                if name in before[2]:
                    break
                assert before[:2] == after[:2], (
                    f"{method}: {name} is not read until task {done} is done, but decides it"
                )
                assert before[2] == after[2]
            flipped += 1
            break
    return flipped


@pytest.mark.slow
def test_what_framefusion_moe_does_not_read_cannot_change_it(manifest, runs):
    assert check("framefusion_moe", manifest, runs, sample=3) == 3


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_read_cannot_change_a_task(method, manifest, runs):
    assert find_method(method)
    assert check(method, manifest, runs) >= 1


@pytest.mark.slow
def test_the_check_notices_a_setting_that_is_read_in_secret(manifest, runs, monkeypatch):
    note = AccessLog.note
    monkeypatch.setattr(AccessLog, "note", lambda self, name: None if name == "method.alpha_init" else note(self, name))
    with pytest.raises(AssertionError, match="alpha_init is not read until task 1"):
        check("framefusion_moe", manifest, runs)
