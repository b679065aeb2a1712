"""Runs on two and three plain processes learn the same as one process, with the project's own loop.

With randomness off, the loss, every tensor, the galleries and R@1 are those of one worker up to rounding. With
randomness on, all workers hold the same bits, and a repeated run gives the same bits. Two workers with a simulated GPU
each learn what one CPU learns (tests/devices/nccl.py). A new method is tested by its line in METHODS.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctvr.methods import CONFIGURATIONS, METHODS, QUESTION_METHODS
from ctvr.orchestrator.learning.training.distributed import Workers
from tests.workers.cases import Case, run
from tests.workers.compare import apart
from tests.workers.group import Hang, together

FEW = [
    Case("clip4clip"),
    Case("clip4clip", {"optim.accumulation_steps": 2, "evaluation.select": "best"}),
    Case(
        "der", {"method.target": "similarities", "method.buffer_size": 8, "method.alpha": 200}
    ),  # that its term is large
    Case("der", {"method.buffer_size": 8, "method.alpha": 200}),  # a term that is a mean over a worker's own pairs
    # Three memory pairs in a step, and one or two in the last; and losses of pairs that are not learned from
    Case("er_ring", {"method.ratio": 0.25, "evaluation.log_losses": 1}),
    Case("lump"),
    Case("tests.hooked_method:Hooked"),  # gradients of terms, and twice in a step
]
MORE = [
    Case("structalign", presets=("released",)),
    Case("der_moco", {"method.target": "similarities"}),
    Case("er_ring", {"method.base": "structalign", "method.ratio": 0.25}),
    Case("co2l", {"method.base": "xpool"}),
    Case(
        "umt_qa", {"optim.accumulation_steps": 2}
    ),  # gradients of several passes, which go to the other workers at once
    Case("lump", {"method.mix_level": "feature"}),
    Case("zscl", {"method.reference_images": 6, "method.average_every": 1}),
    Case("upper_bound", {"method.base": "framefusion_moe"}),  # captions are read by the tasks of all workers' videos
    Case("upper_bound", {"method.base": "moe_adapter"}),
]
GO_ON = ("er_ring", "der", "ewc", "bmu_moco", "framefusion_moe", "structalign")  # memories, queues, Fisher, experts
RANDOM = ("clip4clip", "framefusion_moe", "structalign", "xpool", "moe_adapter", "lora", "er_ring", "lump_moco")
ON_GPUS_TOO = ("no sum", "times workers")  # faults that two workers with a pretended GPU each must show, too
QUEUE = 20  # keys; no multiple of what a step adds


def case_of(name: str, **more: Any) -> Case:
    """Return a method or configuration whose queue is filled and overwritten within the two tasks."""
    if name in {"base_moco", "bmu_moco", "bmu_fixed", "bmu_ensemble", "bmu_moco_local"}:
        return Case(name, {"method.queue_size": QUEUE}, **more)
    return Case(name, {"base.queue_size": QUEUE} if name.endswith("_moco") else {}, **more)


EVERY = [case_of(name) for name in (*METHODS, *CONFIGURATIONS, *QUESTION_METHODS) if name not in {"zero_shot", "zscl"}]
EVERY += [Case("zscl", {"method.average_every": 1})]


def alone(cases: Sequence[Case], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of one worker."""
    return {case.name: run(case, Workers(), str(folder / "store")) for case in cases}


def differing(found: dict[str, list[Any]], expected: dict[str, dict[str, Any]]) -> list[str]:
    """Return the cases whose workers differ from each other or from a single worker, as sentences."""
    said = []
    for name, workers in found.items():
        if len({one["bits"] for one in workers}) > 1:
            said.append(f"{name}: workers hold other bits")
        if len({one["behind"] for one in workers}) > 1:
            said.append(f"{name}: what is behind gather differs by worker")
        one = expected.get(name.partition(" after")[0].removesuffix(" cuda"))
        said += [f"{name}: {sentence}" for sentence in (apart(workers[0], one) if one is not None else ())]
    return said


def test_a_few_methods_are_equal_on_two_workers_and_planted_faults_are_not(tmp_path):
    faults = [Case("clip4clip", fault=fault) for fault in ("no sum", "times workers", "one diverges", "one waits")]
    found: dict[str, list[Any]] = {}
    with pytest.raises(Hang, match=r"^clip4clip one waits: workers \[0, 1\] of 2 wait for ever"):
        together(2, [*FEW, *faults], tmp_path, tmp_path / "store", found)
    expected = alone(FEW, tmp_path)
    assert differing({case.name: found[case.name] for case in FEW}, expected) == []
    for fault in ("no sum", "times workers"):
        assert apart(found[f"clip4clip {fault}"][0], expected["clip4clip"]), fault
    first, second = (one["diverged"] for one in found["clip4clip one diverges"])  # both stop and say why
    assert first == second
    assert first.startswith("task_01, epoch 1: the loss (own) is not finite.")


@pytest.mark.slow
def test_every_method_is_equal_on_two_workers_and_every_kind_on_three(tmp_path):
    drawn = [case_of(name, random=True, label=label) for name in RANDOM for label in ("", "again")]
    expected = alone([*EVERY, *MORE, *(case for case in FEW if case.settings)], tmp_path)
    said = []
    for size in (2, 3):
        found: dict[str, list[Any]] = {}
        cases = [*EVERY, *MORE] if size == 2 else [*FEW, *MORE, *(case_of(name) for name in GO_ON)]
        behind = [case_of(name, after=1) for name in GO_ON] if size == 2 else []
        drawn_now = drawn if size == 2 else drawn[:4]
        together(size, [*cases, *behind, *drawn_now], tmp_path, tmp_path / "store", found)
        if size == 2:  # in processes of their own: autograd counts the devices before the first backward pass
            faults = [Case("clip4clip", fault=fault, device="cuda") for fault in ON_GPUS_TOO]
            on_gpus = [replace(case, device="cuda") for case in EVERY]
            together(size, [*on_gpus, *faults], tmp_path, tmp_path / "store", found)
            seen = [case.name for case in faults if apart(found.pop(case.name)[0], expected["clip4clip"])]
            said += [f"not seen: {case.name}" for case in faults if case.name not in seen]
            waits = {case.name: found[case.name][0]["waits"] for case in on_gpus}  # of a task's two steps
            said += [f"{name}: waits at {places}" for name, places in waits.items() if sum(places.values()) > 4]
        said += [f"{size} workers: {sentence}" for sentence in differing(found, expected)]
        for case in drawn:
            if case.label and case.name in found:
                first = replace(case, label="").name
                said += [f"{first}: another run, other bits"] * (found[first][0]["bits"] != found[case.name][0]["bits"])
    again = alone([case_of(name, after=2) for name in GO_ON], tmp_path)
    said += [f"1 worker: {each}" for each in differing({name: [one] for name, one in again.items()}, expected)]
    assert said == []


def unlike_unbroken(size: int, names: Sequence[str], folder: Path) -> list[str]:
    """Return the methods whose runs on `size` workers differ if every process ends after one epoch."""
    cases = [case_of(name, label="in epochs") for name in names]
    cases = [replace(case, settings={**case.settings, "optim.epochs": 2}) for case in cases]
    found: dict[str, list[Any]] = {}
    together(size, [*cases, *(replace(case, pauses=True) for case in cases)], folder, folder / "store", found)
    pairs = [(case, found[case.name], found[replace(case, pauses=True).name]) for case in cases]
    return [case.method for case, *both in pairs if len({one["bits"] for workers in both for one in workers}) > 1]


def test_workers_that_pause_after_every_epoch_hold_the_bits_of_an_unbroken_run(tmp_path):
    assert unlike_unbroken(2, ("er_ring", "lora"), tmp_path) == []


@pytest.mark.slow
def test_every_method_pauses_exactly_on_two_workers_and_every_kind_on_three(tmp_path):
    assert unlike_unbroken(2, [case.method for case in EVERY if not case.presets], tmp_path) == []
    assert unlike_unbroken(3, GO_ON, tmp_path / "three") == []
