"""The memory of a step is computed from shapes: equal to the byte on a CPU, and near the peaks of a GPU."""

from dataclasses import replace

import pytest
import torch

from ctvr.methods import METHODS
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.base import Batch
from ctvr.orchestrator.data.device import autocast_for
from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.factory import make_method
from ctvr.orchestrator.learning.optimizer import freeze_except
from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.method_checks.step_memory import (
    GIB,
    MARGIN,
    _activations,
    _kept,
    _second_task,
    begin_second_task,
    memory_text,
)
from ctvr.orchestrator.method_checks.step_memory import step_memory as estimate

PAIRS = 4
REPLAYS = ("er_ring", "der", "co2l", "lump", "co2l_moco", "lump_moco")
READS = ("camoe", "cclip", "structalign")  # numbers of a batch, or of what they have learned


def experiment(method: str, **settings: object) -> Experiment:
    tiny = {"backbone.name": "tiny-clip", "backbone.weights": "shipped", "data.num_frames": 3, "data.max_tokens": 12}
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return resolve({"method": method, "stream": "shapes-5", **tiny, "data.batch_size": PAIRS, **given})


def kept_on_a_cpu(described: Experiment) -> int:
    """Return the bytes that autograd stores in the same step with real values."""
    clip = load_backbone("tiny-clip", "shipped")
    frames = torch.randn(PAIRS, described.data.num_frames, 3, clip.image_size, clip.image_size)
    tokens = torch.full((PAIRS, 12), 5)
    tokens[:, -1] = 6  # the largest ends a caption
    batch = Batch(frames, tokens, torch.arange(PAIRS), torch.zeros(PAIRS, dtype=torch.int64))
    method = make_method(described, clip)
    begin_second_task(method, batch)
    freeze_except(method, method.param_groups())
    known = {x.untyped_storage().data_ptr() for x in (*method.parameters(), *method.buffers(), frames, tokens)}
    kept: dict[int, torch.Tensor] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in known:
            kept.setdefault(x.untyped_storage().data_ptr(), x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), autocast_for(described.run.precision, "cpu"):
        sum(method.losses(batch).values())
    return sum(x.untyped_storage().nbytes() for x in kept.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["clip4clip", "lora", "xpool", *REPLAYS])
def test_shapes_keep_what_autograd_keeps_on_a_cpu(method, precision):
    described = experiment(method, precision=precision)
    shapes, batch = _second_task(described, PAIRS)
    freeze_except(shapes, shapes.param_groups())
    assert _kept(shapes, batch, precision, False) == kept_on_a_cpu(described)
    assert _kept(shapes, batch, precision, True) < _kept(shapes, batch, precision, False) / 2
    assert _activations(shapes, batch, precision, True) < _activations(shapes, batch, precision, False)


@pytest.mark.parametrize("method", READS)
def test_a_method_that_reads_numbers_keeps_as_many_bytes_within_half_a_percent(method):
    described = experiment(method)
    shapes, batch = _second_task(described, PAIRS)
    freeze_except(shapes, shapes.param_groups())
    assert _kept(shapes, batch, "fp32", False) == pytest.approx(kept_on_a_cpu(described), rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "precision", "pairs", "peak"),  # GiB on an H200: docs/gpu.md
    [
        ("clip4clip", "fp32", 8, 4.51),
        ("clip4clip", "bf16", 8, 3.66),
        ("clip4clip", "bf16", 32, 8.52),
        ("framefusion_moe", "fp32", 8, 3.92),
        ("framefusion_moe", "bf16", 8, 3.01),
        ("framefusion_moe", "bf16", 32, 7.78),
    ],
)
def test_estimate_is_near_the_peak_of_a_gpu(method, precision, pairs, peak):
    large = {"backbone__name": "ViT-B-32-quickgelu", "backbone__weights": "random", "data__num_frames": 12}
    found = estimate(experiment(method, precision=precision, data__batch_size=pairs, **large))
    assert found is not None
    assert 1 / 1.02 < peak * GIB / found.peak < MARGIN


def test_states_are_those_of_the_optimizer_and_accumulation_keeps_gradients():
    adam = estimate(experiment("clip4clip"))
    assert adam is not None
    assert adam.weights == 4 * sum(p.numel() for p in load_backbone("tiny-clip", "shipped").parameters())
    assert (adam.moments, adam.gradients) == (2 * adam.weights, adam.weights)
    sgd = estimate(experiment("clip4clip", optim__name="sgd"))
    assert sgd is not None
    assert (sgd.moments, sgd.activations) == (0, adam.activations)
    split = estimate(experiment("clip4clip", optim__accumulation_steps=2))
    assert split is not None
    assert split.peak == adam.peak + min(adam.activations, adam.gradients)


@pytest.mark.slow
def test_no_method_lacks_an_estimate():
    """An estimate that fails ends no run, so a method that lost its own would not be noticed."""
    assert [name for name in METHODS if estimate(experiment(name)) is None] == []
    assert memory_text(experiment("zero_shot")) == []


@pytest.mark.slow
def test_the_plan_names_the_first_setting_with_which_a_step_fits():
    described = experiment("clip4clip", data__batch_size=64)
    (line,) = memory_text(described)
    assert line.startswith("a step of 64 pairs in fp32 takes about 0.1 GiB of a GPU (weights 0.0, moments 0.0, ")
    peak = estimate(described)
    assert peak is not None
    (line,) = memory_text(described, room=peak.peak, card="a T4")  # there is a margin
    assert "; a T4 has 0.1 GiB for it: optim.activation_checkpointing=true (same results) takes about 0." in line
    checkpointed = replace(described, optim=replace(described.optim, activation_checkpointing=True))
    less = estimate(checkpointed)
    assert less is not None
    (line,) = memory_text(described, room=less.peak)
    settings = line.partition(": ")[2]
    assert settings.startswith("precision=bf16 optim.activation_checkpointing=true")
    (line,) = memory_text(described, room=1)
    assert line.endswith("use a smaller backbone, or fewer frames (data.num_frames)")
