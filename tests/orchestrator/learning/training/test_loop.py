"""The task loop: interruptions change no number, galleries are stored, nothing is trained twice."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods import METHODS
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.base import Capabilities, Method, ParamGroup
from ctvr.methods.clip4clip import Clip4Clip
from ctvr.methods.families import tempme_family
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.errors import NonFiniteLoss
from ctvr.orchestrator.learning.evaluation import protocols
from ctvr.orchestrator.learning.evaluation.evaluate import metrics_of
from ctvr.orchestrator.learning.evaluation.protocols import CTVR
from ctvr.orchestrator.learning.record.commits import Commits, digest_of_commit
from ctvr.orchestrator.learning.record.method_state import PretrainedSnapshot, load_state
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.run.execute import Result, RunPaths, execute
from ctvr.orchestrator.learning.training import loop
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Stream
from tests.small_stream import write_clip


class Killed(Exception):
    """Simulates the end of a process."""


def settings(manifest: str, method: str = "clip4clip", **more: object) -> dict[str, object]:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return {"method": method, "stream": manifest, **named}


def train(manifest: str, stream: Stream, runs: Path, **more: object) -> Result:
    return execute(resolve(settings(manifest, **more), stream.settings), RunPaths(runs))


def same_weights(a: Result, b: Result) -> bool:
    mine, others = a.method.state_dict(), b.method.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


def numbers(record: RunState) -> tuple[object, ...]:
    return record.own, record.union, record.metrics, record.training, record.ranks, record.steps


@pytest.mark.slow
def test_two_identical_runs_are_bit_identical(manifest, small_stream, runs):
    experiment = resolve(settings(manifest, "framefusion_moe"), small_stream.settings)
    first, second = (execute(experiment, RunPaths(runs), fresh=True) for _ in range(2))
    assert numbers(first.record) == numbers(second.record)
    assert same_weights(first, second)


def test_low_rank_parts_are_merged_only_for_encoding(manifest, small_stream, runs, monkeypatch):
    steps, add = [], tempme_family._add_low_rank

    def watch(*arguments):
        steps.append(torch.is_grad_enabled())
        return add(*arguments)

    monkeypatch.setattr(tempme_family, "_add_low_rank", watch)
    train(manifest, small_stream, runs, method="lora", optim__epochs=1)
    assert steps
    assert all(steps)


def unbroken_and_resumed(experiment, runs: Path) -> tuple[Result, Result]:
    """Run uninterrupted, and killed after the second task and resumed; check that both are equal and return them."""
    unbroken = execute(experiment, RunPaths(runs), fresh=True)

    def die(task, record, seconds):
        if task.index == 1:
            raise Killed

    with pytest.raises(Killed):
        execute(experiment, RunPaths(runs), report=die)
    resumed = execute(experiment, RunPaths(runs))
    assert resumed.resumed == 2
    assert numbers(resumed.record) == numbers(unbroken.record)
    assert same_weights(resumed, unbroken)
    return unbroken, resumed


@pytest.mark.slow
def test_two_loops_on_one_key_with_other_numbers_end_in_one_trajectory(manifest, small_stream, runs, monkeypatch):
    """Loop A commits task 1. B, with other random numbers, commits task 2. A's own task 2 is refused, and A adopts
    B's.
    """
    experiment = resolve(settings(manifest, "framefusion_moe"), small_stream.settings)
    seed_of, told, started = loop.seed_of, [], []

    def second(task, record, seconds):
        if task.index == 1:
            raise Killed  # after the commit

    def first(task, record, seconds):
        told.append((task.index, json.loads(json.dumps(record.metrics))))
        if task.index == 0:
            with monkeypatch.context() as patch:
                patch.setattr(loop, "seed_of", lambda seed, *parts: seed_of(seed + 1, *parts))
                with pytest.raises(Killed):
                    execute(experiment, RunPaths(runs), report=second)

    def ready(key, method, data, commits):
        started.append(commits.finished(3))

    result = execute(experiment, RunPaths(runs), report=first, on_ready=ready)
    unbroken = execute(experiment, RunPaths(runs), fresh=True)
    store = RunPaths(runs).open_store()
    commits = [store.get_json("commits", f"{result.key}/task_00{done}") for done in (1, 2, 3)]
    assert commits[1]["record"]["training"] != unbroken.record.training[: len(commits[1]["record"]["training"])]
    assert [commit["parent"] for commit in commits] == ["", *map(digest_of_commit, commits[:2])]
    assert all(commits[2]["record"][name][:2] == commits[1]["record"][name] for name in ("own", "union", "metrics"))
    assert started == [0, 2]  # the task that B finished is reported again for trackers and searches
    assert [index for index, _ in told] == [0, 2]
    assert told[-1][1] == commits[2]["record"]["metrics"] == result.record.metrics
    assert result.resumed == 2


@pytest.mark.slow
def test_replayed_pairs_are_read_from_the_store(manifest, small_stream, runs):
    experiment = resolve(settings(manifest, "der", method__buffer_size=6), small_stream.settings)
    unbroken, resumed = unbroken_and_resumed(experiment, runs)
    weights, _ = Commits(RunPaths(runs).open_store(), resumed.key).load(3)
    kept = {name: value for name, value in weights.items() if name.startswith("memory.")}
    assert sum(value.nbytes for value in kept.values()) < 6 * 4 * 64 * 64 * 3 / 10  # uint8 frames of 6 videos
    data = unbroken.method.memory.source
    for pair, video in zip(kept["memory.pairs"].tolist(), kept["memory.videos"].tolist()):
        assert any(
            torch.equal(batch.video_ids[batch.pair_ids == pair], torch.tensor([video]))
            for task in range(3)
            for batch in data.ordered_batches([task])
        )
    old = {**weights, "memory.frames": torch.zeros(6, 4, 3, 64, 64, dtype=torch.uint8)}
    with pytest.raises(ValueError, match=r"1 unknown and 0 missing tensors, for example memory\.frames") as error:
        load_state(unbroken.method, old, PretrainedSnapshot(unbroken.method))
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["framefusion_moe", "upper_bound"])
def test_a_run_killed_after_a_task_ends_as_an_unbroken_one(method, manifest, small_stream, runs):
    unbroken_and_resumed(resolve(settings(manifest, method), small_stream.settings), runs)


def test_the_seed_decides_and_is_part_of_the_key(manifest, small_stream, runs):
    a, b = (train(manifest, small_stream, runs, seed=seed) for seed in (0, 1))
    assert a.key != b.key
    assert not same_weights(a, b)


def test_learning_rate_zero_is_the_zero_shot_model(manifest, small_stream, runs):
    tuned = train(manifest, small_stream, runs, optim__lr_scale=0.0)
    zero = train(manifest, small_stream, runs, method="zero_shot")
    assert tuned.record.own == zero.record.own
    assert all(row["stream/t2v/r1_gain"] == 0 for row in tuned.record.metrics)


def test_zero_shot_never_forgets_and_its_rows_repeat(manifest, small_stream, runs):
    record = train(manifest, small_stream, runs, method="zero_shot").record
    assert [row["stream/t2v/bwf"] for row in record.metrics] == [0, 0, 0]
    assert all(record.own[t][i] == record.own[i][i] for t in range(3) for i in range(t + 1))


def test_gain_is_over_zero_shot_after_the_same_task(manifest, small_stream, runs, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.learning.run.execute.zero_shot_curve", lambda *_: [1.0, 2.0, 4.0])
    experiment = resolve(settings(manifest, "zero_shot"), small_stream.settings)
    rows = execute(experiment, RunPaths(runs), fresh=True).record.metrics
    assert [row["stream/t2v/r1"] - row["stream/t2v/r1_gain"] for row in rows] == pytest.approx([1.0, 2.0, 4.0])


def test_stored_galleries_are_never_recomputed_but_by_the_upper_bound(manifest, small_stream, runs):
    steps = []
    for method, is_stored in (("clip4clip", True), ("upper_bound", False)):
        result = train(manifest, small_stream, runs, method=method, optim__epochs=1)
        steps.append(result.record.steps)
        commits = Commits(RunPaths(runs).open_store(), result.key)
        before, after = commits.galleries(1)[0], commits.galleries(3)[0]
        assert torch.equal(before, after) is is_stored
    assert steps[1] > steps[0]  # it learns the pairs of all tasks so far


def test_numbers_of_a_task_and_of_an_epoch_share_no_key(manifest, small_stream, runs):
    """These methods count different quantities per step; StructAlign gives both the same names."""
    record = train(manifest, small_stream, runs, method="structalign").record
    of_tasks = {key for row in record.metrics for key in row}
    of_epochs = {key for row in record.training for key in row}
    assert {"task/micd_text", "task/etf_weight"} <= of_tasks
    assert "train/micd_text" in of_epochs
    assert not of_tasks & of_epochs


def test_a_diverged_run_says_where_and_what_to_lower(manifest, small_stream, runs):
    with pytest.raises(NonFiniteLoss, match=r"task_0\d, epoch \d: the loss .* Lower the learning rates"):
        train(manifest, small_stream, runs, optim__lr_scale=1e30, optim__grad_clip="none")


# --------------------------------------------------------------------------------- the epoch that is kept

FLAT = {"optim__schedule": "constant", "optim__warmup": 0.0}  # an epoch does not depend on the number of epochs


@pytest.mark.slow
def test_best_forgets_a_last_epoch_that_spoiled_the_model(manifest, small_stream, runs, monkeypatch):
    two = train(manifest, small_stream, runs, **FLAT, optim__epochs=2, evaluation__select="best")
    steps = []

    def spoil(self):
        """Make the last of a task's three epochs of two steps end with captions that are all equal."""
        steps.append(1)
        if len(steps) % 6 == 0:
            self.backbone.text.proj.data.zero_()

    monkeypatch.setattr(Clip4Clip, "after_step", spoil)
    # captions that are all equal have the R@1 of chance, as this model; here they have found nothing
    monkeypatch.setattr(CTVR, "score", lambda self, found: sum(rank.mean == 1 for rank in found.ranks.values()))
    three = {**FLAT, "optim__epochs": 3}
    last = train(manifest, small_stream, runs, **three)
    assert not last.method.backbone.text.proj.any()
    steps.clear()
    best = train(manifest, small_stream, runs, **three, evaluation__select="best")
    assert same_weights(best, two)
    assert best.record.own == two.record.own
    assert best.record.steps == 18  # the last epoch was trained, and discarded


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, 1), ({"select_split": "same"}, 2), ({"select_split": "test"}, 2)],
)
def test_the_epoch_with_the_best_r1_on_the_chosen_split_is_kept(
    settings, kept, manifest, small_stream, runs, monkeypatch
):
    reference = train(manifest, small_stream, runs, **FLAT, optim__epochs=kept)
    curves = {"val": (50.0, 10.0, 20.0), "test": (10.0, 50.0, 20.0)}  # R@1 of the three epochs of a task
    asked: dict[tuple[str, int], int] = {}

    def scripted(scores, queries, sizes):
        found = metrics_of(scores, queries, sizes)
        split = "val" if "_val_" in queries[0].names[0] else "test"
        epoch = asked[split, len(sizes)] = asked.get((split, len(sizes)), 0) + 1
        found.metrics["stream/t2v/r1"] = curves[split][min(epoch, 3) - 1]
        return found

    monkeypatch.setattr(protocols, "metrics_of", scripted)
    settings = {f"evaluation__{name}": value for name, value in settings.items()}
    best = train(manifest, small_stream, runs, **FLAT, optim__epochs=3, evaluation__select="best", **settings)
    assert same_weights(best, reference)


@pytest.mark.parametrize("select", ["last", "best"])
def test_no_commit_holds_a_backbone_that_stays_as_it_was(select, manifest, small_stream, runs, monkeypatch):
    kept = []
    changed = loop.trained_state
    monkeypatch.setattr(loop, "trained_state", lambda *given: kept.append(changed(*given)) or kept[-1])
    result = train(manifest, small_stream, runs, method="lora", evaluation__select=select)
    names = {name for name in result.method.state_dict() if name.startswith("backbone.")}
    assert len(kept) == len(small_stream.tasks)
    assert names
    assert not any(names & state.keys() for state in kept)


def test_the_loss_of_evaluated_pairs_is_that_of_the_model_then(manifest, small_stream, runs):
    """The three pairs are one batch, without augmentation."""
    told = train(manifest, small_stream, runs, evaluation__log_losses=True, data__augment="crop_flip")
    clip, config = load_backbone("tiny-clip", "shipped"), DataConfig(num_frames=4)
    source = FrameSource(RunPaths(runs).open_store(), config, clip.image_size)
    data = StreamData(small_stream, source, clip.tokenize, clip.mean, clip.std, config, torch.device("cpu"))
    method = told.method.eval()
    with torch.no_grad():
        (frames,) = data.videos(2, "test", range(3), 3)
        logits = method.scale() * method.encode_text(data.queries(2, "test").tokens) @ method.encode_video(frames).mT
        right = torch.arange(3)
        expected = (F.cross_entropy(logits, right) + F.cross_entropy(logits.mT, right)) / 2
    assert told.record.training[-1]["test/loss/contrastive"] == pytest.approx(expected.item(), rel=1e-5)


NOTING = ("bmu_moco", "umt")  # queues of keys; a count of draws


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [name if name in NOTING else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_losses_of_evaluated_pairs_are_logged_without_effect(method, manifest, small_stream, runs):
    more = {"method": method, "optim__epochs": 2}
    if method == "lpi":  # its rate is that of SGD, and the stream multiplies rates by 50
        more["optim__lr_scale"] = 1.0
    plain = train(manifest, small_stream, runs, **more)
    told = train(manifest, small_stream, runs, evaluation__log_losses=True, **more)
    assert same_weights(plain, told)
    assert (told.record.metrics, told.record.ranks) == (plain.record.metrics, plain.record.ranks)
    for row, with_test in zip(plain.record.training, told.record.training, strict=True):
        test = {name: value for name, value in with_test.items() if name.startswith("test/loss/")}
        assert {name: value for name, value in with_test.items() if name not in test} == row
        assert {name.replace("test", "train") for name in test} == {name for name in row if "/loss/" in name}
        assert all(math.isfinite(value) for value in test.values())


@pytest.mark.slow
@pytest.mark.parametrize(("patience", "begins", "epochs"), [(2, 1, 3), (2, 3, 5), (None, 0, 6)])
def test_a_task_ends_when_no_epoch_has_been_better_for_a_while(
    patience, begins, epochs, manifest, small_stream, runs, monkeypatch
):
    curve = iter(
        [50.0, 50.0, 20.0, 30.0, 30.0, 50.0]
    )  # R@1 after the epochs of the first task; a tie is not an improvement
    seen = []

    def scripted(scores, queries, sizes):
        found = metrics_of(scores, queries, sizes)
        found.metrics["stream/t2v/r1"] = next(curve, 0.0)
        seen.append(len(sizes))
        return found

    monkeypatch.setattr(protocols, "metrics_of", scripted)
    asked = {"evaluation__patience": patience, "evaluation__patience_start": begins, "optim__epochs": 6}
    train(manifest, small_stream, runs, **FLAT, **asked, evaluation__select="best")
    assert seen.count(1) == epochs + 1  # and once more at the end of the task


@pytest.mark.parametrize(("has_val", "chosen_on"), [(True, {"val"}), (False, {"test"})])
def test_test_videos_are_not_looked_at_until_the_epoch_is_chosen(
    has_val, chosen_on, manifest, small_stream, runs, monkeypatch
):
    content = json.loads(Path(manifest).read_text())
    if not has_val:
        for task in content["tasks"]:
            task["val"] = []
        Path(manifest).write_text(json.dumps(content))
    train(manifest, small_stream, runs, method="zero_shot")  # the curve with which the run is compared
    seen: list[set[str]] = [set()]
    videos = StreamData.videos

    def spy(self, task, split, rows, batch_size):
        seen[-1].add(split)
        return videos(self, task, split, rows, batch_size)

    monkeypatch.setattr(StreamData, "videos", spy)
    monkeypatch.setattr(Clip4Clip, "end_task", lambda self, task, loader: seen.append(set()))
    experiment = resolve(settings(manifest, evaluation__select="best"), small_stream.settings)
    execute(experiment, RunPaths(runs), report=lambda *call: seen.append(set()))
    assert seen == [chosen_on, {"test"} | chosen_on] * 3 + [set()]  # training, the end of a task, training, ...


@pytest.mark.slow
def test_a_resumed_run_chooses_among_the_galleries_of_the_unbroken_one(manifest, small_stream, runs):
    experiment = resolve(settings(manifest, "framefusion_moe", evaluation__select="best"), small_stream.settings)
    unbroken, resumed = unbroken_and_resumed(experiment, runs)
    stored = [Commits(RunPaths(runs).open_store(), run.key).galleries(3, "selection") for run in (resumed, unbroken)]
    assert [len(galleries) for galleries in stored] == [3, 3]
    assert all(torch.equal(a, b) for a, b in zip(*stored))


# ------------------------------------------------------------------------------------ accumulated gradients


class Brightness(Method):
    """Method whose loss is a mean over independent pairs."""

    @classmethod
    def capabilities(cls, config):
        return Capabilities(accumulation="pairs")

    def __init__(self) -> None:
        super().__init__()
        self.config, self.weight = None, torch.nn.Parameter(torch.zeros(3, 8))

    def param_groups(self):
        return [ParamGroup(name="weight", params=[self.weight], lr=0.01)]

    def encode_video(self, frames):
        return frames.mean(dim=(1, 3, 4)) @ self.weight

    def encode_text(self, tokens, task=None):
        return torch.nn.functional.pad(tokens, (0, 8))[:, :8].float() / 1000

    def losses(self, batch):
        return {"far": (self.encode_video(batch.frames) - self.encode_text(batch.tokens)).square().sum(-1).mean()}


def bright(stream: Stream, runs: Path, pairs: int, accumulate: int) -> tuple[torch.Tensor, int]:
    """Return the weight after two epochs of the first task's 8 pairs, and the number of steps."""
    config = DataConfig(num_frames=4, batch_size=pairs)
    clip = load_backbone("tiny-clip", "shipped")
    store = RunPaths(runs).open_store()
    source = FrameSource(store, config, clip.image_size)
    cpu = torch.device("cpu")
    data = StreamData(replace(stream, tasks=stream.tasks[:1]), source, clip.tokenize, clip.mean, clip.std, config, cpu)
    # Such a large eps makes Adam's step linear in the gradient; otherwise it is invariant to the gradient's scale
    optim = OptimConfig(epochs=2, accumulation_steps=accumulate, grad_clip=None, eps=100.0, lr_scale=1000.0)
    commits = Commits(store, f"bright-{pairs}-{accumulate}")
    made = loop.Loop(Brightness(), data, loop.LoopConfig(optim, EvaluationConfig()), commits)
    steps = made.run().steps
    return made.method.weight.detach(), steps


@pytest.mark.parametrize(
    ("pairs", "accumulate", "together"),
    [
        (4, 2, 8),
        (3, 3, 8),  # 3 + 3 + 2: a last batch that is short
        (3, 2, 6),  # 3 + 3, then 2 alone: both
        (1, 5, 5),  # 5 x 1, then 3 x 1
        (2, 100, 8),
    ],
)
def test_accumulated_batches_learn_what_one_batch_of_all_their_pairs_does(
    pairs, accumulate, together, small_stream, runs
):
    parts, steps = bright(small_stream, runs, pairs, accumulate)
    whole, expected = bright(small_stream, runs, together, 1)
    assert steps == expected == 2 * math.ceil(8 / together)
    assert whole.abs().max() > 0.01
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_bf16_changes_the_towers_and_scores_in_float32(manifest, small_stream, runs, monkeypatch):
    seen = set()
    plain = Clip4Clip.score

    def spy(self, queries, gallery):
        seen.add((queries.dtype, gallery.dtype, torch.is_autocast_enabled("cpu")))
        return plain(self, queries, gallery)

    full = train(manifest, small_stream, runs)
    monkeypatch.setattr(Clip4Clip, "score", spy)
    half = train(manifest, small_stream, runs, precision="bf16")
    assert half.record.done == 3
    assert seen == {(torch.float32, torch.float32, False)}
    assert not same_weights(full, half)


@pytest.fixture
def cvlm(manifest: str) -> str:
    """Load the same videos under the protocol that re-encodes every gallery after every task."""
    path = Path(manifest).with_name("small_cvlm.json")
    path.write_text(json.dumps({**json.loads(Path(manifest).read_text()), "name": "small-cvlm", "protocol": "cvlm"}))
    return str(path)


@pytest.mark.slow
def test_a_resumed_run_remembers_galleries_that_are_encoded_again(cvlm, runs):
    stream = load_stream(cvlm, runs)
    experiment = resolve(settings(cvlm, "bmu_moco"), stream.settings)
    _, resumed = unbroken_and_resumed(experiment, runs)
    assert {"stream/t2v/fr", "stream/t2v/hm", "stream/t2v/r1_mean"} <= set(resumed.record.metrics[-1])


@pytest.mark.slow
def test_a_run_killed_within_a_commit_does_the_task_again(manifest, small_stream, runs, monkeypatch):
    experiment = resolve(settings(manifest), small_stream.settings)
    unbroken = execute(experiment, RunPaths(runs), fresh=True)
    calls = []
    publish = Store.create_json

    def die_at_the_second(self, kind, key, value):
        if kind == "commits" and not key.startswith("zero-"):
            calls.append(key)
            if len(calls) == 2:
                raise Killed  # weights and gallery are written, the record that names them is not
        return publish(self, kind, key, value)

    monkeypatch.setattr(Store, "create_json", die_at_the_second)
    with pytest.raises(Killed):
        execute(experiment, RunPaths(runs))
    monkeypatch.undo()
    resumed = execute(experiment, RunPaths(runs))
    assert resumed.resumed == 1
    assert numbers(resumed.record) == numbers(unbroken.record)
    assert same_weights(resumed, unbroken)


def test_a_search_never_reads_a_test_video(manifest, small_stream, runs, monkeypatch):
    read = []
    load = FrameSource.load
    monkeypatch.setattr(FrameSource, "load", lambda self, item: read.append(item.video) or load(self, item))
    train(manifest, small_stream, runs, evaluation__split="val")
    assert any("_val_" in video for video in read)
    assert not [video for video in read if "_test_" in video]


@pytest.mark.slow
def test_other_footage_under_the_same_names_is_another_run(manifest, small_stream, runs):
    before = train(manifest, small_stream, runs)
    write_clip(Path(manifest).parent / "videos" / "red_train_0.mp4", (10, 10, 10), seed=999)
    after = train(manifest, small_stream, runs)
    assert after.key != before.key
    assert after.resumed == 0
