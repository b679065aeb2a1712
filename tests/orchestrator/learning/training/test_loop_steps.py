"""Initial and stored state of the loop's steps: randomness at the start of a task, checkpointed activations."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ctvr.methods.backbone import blocks
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.run.execute import RunPaths
from ctvr.orchestrator.learning.training.loop import Loop, LoopConfig
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.resolve import resolve
from tests.hooked_method import Hooked


@pytest.fixture
def make_loop(small_stream, runs):
    """Build a loop over the small stream with batches of 4 pairs."""
    store, config, clip = (
        RunPaths(runs).open_store(),
        DataConfig(num_frames=4, batch_size=4),
        load_backbone("tiny-clip", "shipped"),
    )
    source = FrameSource(store, config, clip.image_size)
    data = StreamData(small_stream, source, clip.tokenize, clip.mean, clip.std, config, torch.device("cpu"))

    def make(cls: type[Clip4Clip], key: str, seed: int = 0, **optim: object) -> Loop:
        method = cls(Clip4ClipConfig(), load_backbone("tiny-clip", "shipped"))
        made = LoopConfig(OptimConfig(**{"epochs": 0, **optim}), EvaluationConfig(), seed)
        return Loop(method, data, made, Commits(store, key))

    return make


class Drawing(Clip4Clip):
    """Records the random numbers drawn at the start of a task, and the end of a task."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.drawn: list[float] = []
        self.ended: list[torch.Tensor] = []

    def begin_task(self, task):
        self.drawn.append(float(torch.rand(())))

    def end_task(self, task, loader):
        self.ended.append(self.encode_video(next(iter(loader)).frames))


def test_what_a_task_begins_with_is_drawn_from_the_seed_and_the_task(make_loop):
    drawn = []
    # A run, its resumption after all tasks in another process's random state, and a run of another seed
    for key, seed, state in (("a", 0, 1), ("a", 0, 2), ("b", 3, 1)):
        torch.manual_seed(state)
        made = make_loop(Drawing, key, seed)
        made.run()
        drawn.append(made.method.drawn)
    first, resumed, other = drawn
    assert len(first) == 3
    assert first == resumed
    assert len({*first, *other}) == 6


def test_the_setting_checkpoints_activations_and_is_no_part_of_the_key(make_loop, small_stream, monkeypatch):
    passed: list[int] = []
    monkeypatch.setattr(blocks, "checkpoint", lambda *args, **more: passed.append(1) or checkpoint(*args, **more))
    keys = set()
    for is_on in (False, True):
        made = make_loop(Drawing, f"kept-{int(is_on)}", activation_checkpointing=is_on)
        made.run()
        assert bool(passed) == is_on
        assert all(features.requires_grad for features in made.method.ended)  # end_task may take gradients
        given = {"method": "clip4clip", "stream": "s", "optim.activation_checkpointing": is_on}
        keys.add(resolve(given).key(small_stream))
    assert len(keys) == 1


def test_a_task_is_read_before_its_training_and_each_step_knows_its_position(make_loop):
    """The tasks have 8 pairs and batches of 4. A resumed run repeats neither call for finished tasks."""
    whole = make_loop(Hooked, "hooked", epochs=2)
    whole.run(until=1)
    first = [(each.step, each.steps, each.epoch, each.epochs) for each in whole.method.positions]
    assert first == [(0, 4, 0, 2), (1, 4, 0, 2), (2, 4, 1, 2), (3, 4, 1, 2)]
    assert whole.method.calls.tolist() == [1, 4]
    resumed = make_loop(Hooked, "hooked", epochs=2)
    resumed.run(until=2)
    assert resumed.method.calls.tolist() == [2, 8]
    assert len(resumed.method.positions) == 4
    unbroken = make_loop(Hooked, "unbroken", epochs=2)
    unbroken.run(until=2)
    mine, others = resumed.method.state_dict(), unbroken.method.state_dict()
    assert all(torch.equal(mine[name], others[name]) for name in others)
