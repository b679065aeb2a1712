"""Runs and settings that cannot be are refused, before anything is trained."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ctvr.methods.base import ParamGroup
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.settings import SettingError
from ctvr.methods.tiny_models import make_small_clip
from ctvr.orchestrator.learning.evaluation import cost
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.optimizer import freeze_except
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.resolve import resolve
from tests.refusing import refused


class Crowd(Workers):
    """Several workers, of which this process is the first; the others agree with it."""

    def broadcast(self, value):
        return value


QA, NO_VAL = {"protocol": "qa"}, {"has_val": False}  # how the stream differs from the small one
NEW = "optim.epochs=1 upgrade.backbone=tiny-clip-stem upgrade.task"
POSITIONS = "sim_header=seqTransf data.num_frames=33"
RUNS: dict[str, tuple[dict[str, object], str, str]] = {  # method and settings -> stream, setting, part of the fault
    "zero_shot backbone.name=ViT-B-23": ({}, "backbone.name", "'ViT-B-23'"),
    "zero_shot evaluation.split=val": (NO_VAL, "", "evaluation.split: stream small has no validation videos"),
    "clip4clip workers=16 data.batch_size=16": ({}, "workers", "task_01 of stream small has 8 training pairs for 16"),
    "clip4clip workers=6 data.batch_size=6": ({}, "workers", "drop 2 of 8 pairs of task_01 (25%)"),
    "umt_qa evaluation.reencode=100": (QA, "evaluation.reencode", "protocol qa"),
    "umt_qa evaluation.unlearned_tasks=true": (QA, "evaluation.unlearned_tasks", "protocol qa"),
    "umt_qa evaluation.costs=true": (QA, "evaluation.costs", "captions that search videos"),
    "zero_shot evaluation.oracle_task=true": ({"protocol": "cvlm"}, "evaluation.oracle_task", "has cvlm"),
    f"clip4clip method.{POSITIONS}": ({}, "data.num_frames", "positions for 32 frames"),
    f"lwf base.{POSITIONS}": ({}, "data.num_frames", "positions for 32 frames"),
    f"clip4clip {NEW}=4": ({}, "upgrade.task", "must be 2 to 3"),
    f"clip4clip {NEW}=1": ({}, "upgrade.task", "2 or more"),
    "clip4clip upgrade.task=2": ({}, "upgrade.task", "Add upgrade.backbone=NAME"),
    f"clip4clip {NEW}=0": ({}, "upgrade.backbone", "Add upgrade.task=N"),
    f"upper_bound {NEW}=2": ({}, "upgrade.task", "never encoded again"),
    f"xpool {NEW}=2": ({}, "upgrade.task", "unlike xpool"),
    f"clip4clip evaluation.oracle_task=true {NEW}=2": ({}, "evaluation.oracle_task", "cannot be used with upgrade"),
    f"clip4clip evaluation.select=best {NEW}=2": ({}, "evaluation.select", "cannot be used with upgrade"),
}


@pytest.mark.wording
@pytest.mark.parametrize(
    "words", [pytest.param(words, marks=pytest.mark.slow) if POSITIONS in words else words for words in RUNS]
)
def test_a_run_that_cannot_be_is_refused_in_one_line(words, manifest, small_stream, runs):
    of_stream, setting, said = RUNS[words]

    def run():
        method, *more = words.split()
        settings = {"method": method, "stream": manifest, **dict(word.split("=", 1) for word in more)}
        experiment = resolve(settings, small_stream.settings)
        workers = Crowd(0, int(str(settings.get("workers", 1))))
        execute(experiment, RunPaths(runs), workers, stream=replace(small_stream, **of_stream))

    refused(run, said, settings=(setting,))


CONFIGS: dict[str, tuple[type, dict[str, object], list[str]]] = {  # part of the fault -> settings, those it names
    "epochs must be >= 0, got -1": (OptimConfig, {"epochs": -1}, ["epochs"]),
    "warmup must be in": (OptimConfig, {"warmup": -0.1}, ["warmup"]),
    "at most 1 or a whole number of steps": (OptimConfig, {"warmup": 1.5}, ["warmup"]),
    "grad_clip": (OptimConfig, {"grad_clip": 0.0}, ["grad_clip"]),
    "momentum must be in": (OptimConfig, {"momentum": 1.0}, ["momentum"]),
    "is not used by": (OptimConfig, {"schedule": "constant", "final_share": 0.1}, ["final_share", "schedule"]),
    "in (0, 1], got 0.0": (EvaluationConfig, {"knn_share": 0.0}, ["knn_share"]),
    "in (0, 1], got -0.1": (EvaluationConfig, {"knn_share": -0.1}, ["knn_share"]),
    "in (0, 1], got 1.5. Use 0.02, or none": (EvaluationConfig, {"knn_share": 1.5}, ["knn_share"]),
    "0 to 100, got 120. Use 25,50,100": (EvaluationConfig, {"reencode": (25, 120)}, ["reencode"]),
    "Add evaluation.distractors_from=STREAM": (EvaluationConfig, {"distractors": (5,)}, ["distractors"]),
    ">= 1, got 0. Use 100,1000": (EvaluationConfig, {"distractors": (0,), "distractors_from": "x"}, ["distractors"]),
}


@pytest.mark.wording
@pytest.mark.parametrize("said", CONFIGS)
def test_settings_out_of_range_say_what_to_write(said):
    config, settings, named = CONFIGS[said]
    refused(lambda: config(**settings), said, kind=SettingError, settings=named)


def trained(*parameters: torch.nn.Parameter) -> None:
    freeze_except(PAIR, [ParamGroup(name="g", params=list(parameters), lr=1.0)])


PAIR = torch.nn.Linear(2, 2)
CALLS: dict[str, Callable[[], object]] = {
    "zip": lambda: cost.tower_macs(make_small_clip().vision, [], 3),
    "'ViT-Z' is not an architecture": lambda: cost.sizes_only("ViT-Z"),
    "appears twice": lambda: trained(PAIR.weight, PAIR.weight),
    "not parameters of the method": lambda: trained(torch.nn.Parameter(torch.ones(1))),
    "no part called 'vision.conv2'": lambda: Clip4Clip(Clip4ClipConfig(frozen=("vision.conv2",)), make_small_clip()),
}


@pytest.mark.wording
@pytest.mark.parametrize("said", CALLS)
def test_what_a_method_or_a_caller_hands_over_wrongly_is_refused(said):
    refused(CALLS[said], said, kind=ValueError)
