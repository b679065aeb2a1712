"""Footnotes about test videos, compared with a monitored run: the videos that it loads, and their effect."""

import json
import zlib
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ctvr.methods import CONFIGURATIONS, IMAGE_METHODS, METHODS
from ctvr.methods.tiny_models import CONTEXT, tokenize
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.training.loop import Loop, LoopConfig
from ctvr.orchestrator.method_checks.subject import Subject
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.presets import with_recipe
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask
from ctvr.orchestrator.synthetic.images import SETTINGS as IMAGES
from ctvr.orchestrator.tables.footnotes import TEXTS, access_of, by_hand, has_access, marks_of
from ctvr.orchestrator.tracking.run_record import RunRecord, as_text

FRAMES = 4
SETTINGS = {"optim.epochs": 1, "data.batch_size": 4, "data.cache_features": False, "optim.lr_scale": 100.0}


def items(task: int, split: str, count: int) -> tuple[Item, ...]:
    names = [f"{split}_{task}_{number}" for number in range(count)]
    return tuple(
        Item(name, f"{name}.mp4", None, f"c{2 * task + n % 2}", (f"{name} a",)) for n, name in enumerate(names)
    )


def stream(has_val: bool = False) -> Stream:
    tasks = tuple(
        StreamTask(
            f"t{task}",
            (f"c{2 * task}", f"c{2 * task + 1}"),
            items(task, "train", 4),
            items(task, "val", 3) if has_val else (),
            items(task, "test", 3),
        )
        for task in range(2)
    )
    return Stream("watched", tasks, "ctvr", has_val)


@dataclass
class Watched:
    """Frames of noise by the name of a video, and the requested names. `salt` changes the test videos."""

    salt: str = ""
    loaded: list[str] = field(default_factory=list)

    def load(self, item: Item) -> np.ndarray:
        self.loaded.append(item.video)
        salt = self.salt if item.video.startswith("test") else ""
        random = np.random.default_rng(zlib.crc32((item.video + salt).encode()))
        return random.integers(0, 256, (FRAMES, 32, 32, 3), dtype=np.uint8)

    def key(self, item: Item) -> str:
        return item.video + self.salt


class NotKept:
    """Replacement for commits: no task was finished before, and none is stored."""

    run, store = "", SimpleNamespace(list=lambda *place: [])

    def finished(self, num_tasks: int) -> int:
        return 0

    def publish(self, *arguments: object) -> bool:
        return True


class WatchedLoop(Loop):
    """A loop that records the videos loaded from the start of a task's training to its end."""

    def _train(self, task):
        before = len(self.data.frames.loaded)
        super()._train(task)
        self.of_task = {*self.data.frames.loaded[before:]}  # of the last task
        self.seen = {*getattr(self, "seen", set()), *self.of_task}


def run(made: Experiment, subject: Subject, salt: str = "", has_val: bool = False) -> WatchedLoop:
    method = subject.make()
    cpu = torch.device("cpu")
    data = StreamData(stream(has_val), Watched(salt), tokenize, (0.5,) * 3, (0.25,) * 3, made.data, cpu)
    loop = WatchedLoop(method, data, LoopConfig(made.optim, made.evaluation), NotKept())
    loop.run()
    return loop


def learned(loop: WatchedLoop) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in loop.method.parameters()]


def record(made: Experiment, **tags: str) -> RunRecord:
    """Write a record in MLflow from before runs had the tag."""
    settings = {name: as_text(value) for name, value in made.settings.items()}
    return RunRecord("1", "r", settings, {}, {"ctvr.method": made.name, **tags}, "FINISHED", "")


def subject_of(row: str, **more: object) -> Subject:
    name, _, preset = row.partition(":")
    named = {name.replace("__", "."): value for name, value in more.items()}
    return Subject.of(name, {**SETTINGS, **named}, [preset] if preset else [])


def trains_on_test_videos(subject: Subject) -> bool:
    """Return whether other test videos change the trained weights; they are never loaded in training."""
    loops = [run(subject.experiment, subject, salt) for salt in ("", "other")]
    assert not {name for loop in loops for name in getattr(loop, "seen", ()) if not name.startswith("train")}
    a, b = map(learned, loops)
    return any(not torch.equal(x, y) for x, y in zip(a, b, strict=True))


def reads_earlier_videos(subject: Subject) -> bool:
    """Return whether the training of task 2 loads training videos of task 1."""
    return any(name.startswith("train_0") for name in run(subject.experiment, subject).of_task)


def is_in_its_block(made: Experiment) -> bool:
    """Return whether a row is among those with earlier videos; the tags of a run say the same as its settings."""
    facts = ("is_joint", "keeps_videos", "trains_on_searched")
    tags = {f"ctvr.{fact}": str(getattr(made, fact)).lower() for fact in facts}
    assert access_of(record(made)) == access_of(record(made, **tags))
    assert made.is_joint == (access_of(record(made)) == "joint")
    return "videos" in access_of(record(made)) or made.is_joint


def is_marked(made: Experiment) -> bool:
    marks = marks_of(record(made))
    assert (
        has_access(record(made), "trains_on_searched") == made.trains_on_searched == (TEXTS["trains_on_test"] in marks)
    )
    return made.trains_on_searched


QUICK = [
    ("framefusion_moe", {}, True),
    ("framefusion_moe:train-references", {}, False),
    ("framefusion_moe", {"optim__epochs": 0}, False),
    ("lwf", {"method__base": "framefusion_moe"}, True),
    ("lwf", {"method__base": "framefusion_moe", "base__reference_source": "train"}, False),
    ("upper_bound", {"method__base": "framefusion_moe", "base__use_prototypes": False}, False),
]


@pytest.mark.parametrize(("row", "settings", "expected"), QUICK)
def test_a_row_is_marked_where_test_videos_change_what_it_learns(row, settings, expected):
    subject = subject_of(row, **settings)
    assert trains_on_test_videos(subject) == is_marked(subject.experiment) == expected


REPLAYS = [
    ("er_ring", {}, True),
    ("er_ring", {"method__buffer_size": 0}, False),
    ("er_ring", {"method__buffer_size": 0, "method__buffer_share": 0.5}, True),
    ("er_ring", {"optim__epochs": 0}, False),
    ("clip4clip", {}, False),
    ("framefusion_moe:train-references", {}, False),
    ("upper_bound", {}, True),
]


@pytest.mark.parametrize(("row", "settings", "expected"), REPLAYS)
def test_a_row_that_trains_on_earlier_videos_is_in_its_own_block(row, settings, expected):
    subject = subject_of(row, **settings)
    assert reads_earlier_videos(subject) == is_in_its_block(subject.experiment) == expected


def test_a_strategy_over_a_row_that_trains_on_test_videos_has_both_kinds_of_access():
    made = subject_of("er_ring", method__base="framefusion_moe").experiment
    assert access_of(record(made)) == "videos+searched"


def test_an_unknown_method_has_the_access_that_its_run_recorded():
    made = subject_of("clip4clip").experiment
    for tags, access in (({}, ""), ({"ctvr.keeps_videos": "true"}, "videos"), ({"ctvr.is_joint": "true"}, "joint")):
        run = record(made, **tags)
        run.settings["method"] = "their.module:Theirs"
        assert access_of(run) == access


@pytest.mark.slow
@pytest.mark.parametrize("name", [*METHODS, *CONFIGURATIONS])
def test_no_other_method_reads_earlier_videos_outside_its_block(name):
    try:
        subject = subject_of(name)
        subject.make()
    except (ConfigError, ValueError) as error:
        pytest.skip(f"does not run on the small backbone: {error}")
    assert reads_earlier_videos(subject) == is_in_its_block(subject.experiment)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*METHODS, *CONFIGURATIONS])
def test_no_other_method_learns_from_test_videos_without_a_mark(name):
    try:
        subject = subject_of(name)
        subject.make()
    except (ConfigError, ValueError) as error:
        pytest.skip(f"does not run on the small backbone: {error}")
    assert trains_on_test_videos(subject) == is_marked(subject.experiment) == (name == "framefusion_moe")


@pytest.fixture(scope="module")
def image_streams(tmp_path_factory) -> list[str]:
    """Write manifests of two streams of images that differ only in their test images."""
    found = []
    for salt in range(2):
        folder, random, tasks = tmp_path_factory.mktemp("images"), np.random.default_rng(0), []
        for task in range(2):
            names = [f"c{2 * task}", f"c{2 * task + 1}"]
            made: dict[str, object] = {"name": f"t{task}", "categories": names}
            for split in ("train", "test"):
                for name in names:
                    images = random.integers(0, 250, (4, 8, 8, 3)) + salt * (split == "test")
                    np.save(folder / f"{split}_{name}.npy", images.astype(np.uint8))
                made[split] = [{"video": f"{split}_{c}", "path": f"{split}_{c}.npy", "category": c} for c in names]
            tasks.append(made)
        manifest = {"format": 1, "name": "noise", "protocol": "ucl", "tasks": tasks, "settings": IMAGES}
        (folder / "noise.json").write_text(json.dumps(manifest))
        found.append(str(folder / "noise.json"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGE_METHODS)
def test_no_method_over_images_learns_from_test_images(name, image_streams, tmp_path):
    weights = []
    for number, manifest in enumerate(image_streams):
        root = tmp_path / str(number)
        found = load_stream(manifest, root)
        small = {"method": name, "stream": manifest, "optim.epochs": 1, "data.batch_size": 4}
        made = resolve(small, found.settings, with_recipe(name, (), found.settings))
        assert not is_marked(made)
        weights.append([p.detach() for p in execute(made, RunPaths(root), stream=found).method.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize(
    ("has_val", "settings", "seen"),
    [(False, {}, "test"), (True, {}, "val"), (True, {"evaluation__select_split": "same"}, "test")],
)
def test_a_row_whose_epochs_are_chosen_on_test_videos_says_so(has_val, settings, seen):
    subject = subject_of("clip4clip", evaluation__select="best", **settings)
    made = subject.experiment
    loop = run(made, subject, has_val=has_val)
    assert {name.partition("_")[0] for name in loop.seen} == {"train", seen}
    tags = {"ctvr.select_split": made.evaluation.selects_on(has_val)}
    assert (TEXTS["best_test"] in marks_of(record(made, **tags))) == (seen == "test")


def test_validation_videos_in_training_are_called_so():
    made = subject_of("framefusion_moe", evaluation__split="val").experiment
    assert TEXTS["trains_on_val"] in marks_of(record(made))


def test_run_with_unreadable_settings_gets_the_test_video_mark():
    run = record(subject_of("framefusion_moe:train-references").experiment)
    run.settings["method.beta"] = "unheard-of"
    assert has_access(run, "trains_on_searched")


def test_a_method_of_another_package_is_asked_when_it_runs():
    made = subject_of("clip4clip").experiment
    run = record(made, **{"ctvr.trains_on_searched": "true"})
    run.settings["method"] = "their.module:Theirs"
    assert TEXTS["trains_on_test"] in marks_of(run)


@pytest.mark.parametrize(
    "row", ["clip4clip", "structalign", "structalign:shapes", "xpool", "camoe", "camoe:dsl", "dsl"]
)
def test_a_row_is_transductive_where_other_queries_change_its_scores(row):
    method = subject_of(row).make()
    frames = torch.randn(5, FRAMES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        queries = method.encode_text(tokenize([f"a man {n} plays" for n in range(6)])[:, :CONTEXT])
        scores = method.score(queries, method.encode_video(frames))
    alone = method.normalize_scores(scores[:2])
    assert (
        not torch.allclose(method.normalize_scores(scores)[:2], alone, atol=1e-6)
    ) == method.declared.is_transductive


@pytest.mark.parametrize(
    ("settings", "presets", "expected"),
    [
        ({"method": "lwf", "method.base": "clip4clip"}, "shapes", "7?"),
        ({"method": "ewc", "method.base": "framefusion_moe"}, "shapes,no-ffa", "3?"),
        ({"method": "framefusion_moe"}, "shapes", "?"),  # six rates without a record
        ({"method": "framefusion_moe"}, "paper", ""),
        ({"method": "zero_shot"}, "", ""),
    ],
)
def test_trials_by_hand_are_those_of_the_recipe_and_unrecorded_ones_are_marked(settings, presets, expected):
    run = RunRecord("1", "1", settings, {}, {"ctvr.presets": presets}, "FINISHED", "")
    assert by_hand(run) == expected


def test_a_row_whose_maps_penalty_never_acted_is_marked():
    def record(*penalties: float) -> RunRecord:
        metrics = {
            "task/orthogonality_penalty": [(task, value) for task, value in enumerate(penalties, start=2)],
            "task/orthogonality_gap": [(task, 0.5 + value) for task, value in enumerate(penalties, start=2)],
        }
        return RunRecord("", "", {"method": "lambda_orthogonality"}, metrics, {}, "FINISHED", "")

    marked = "the penalty on its map W had no effect (at most 2.0e-20 after any task, with |W W' - I| at most 0.50)"
    assert any(mark.startswith(marked) for mark in marks_of(record(0.0, 2e-20)))
    assert not any("penalty" in mark for mark in marks_of(record(0.0, 0.4)))
    assert not any("penalty" in mark for mark in marks_of(record()))
