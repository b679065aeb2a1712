"""Streams of labeled images: the same loop, commits and settings, with nearest neighbors instead of a search."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ctvr.methods import IMAGE_METHODS, METHODS, find_method
from ctvr.methods.images import knn
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.images import ImageData, ImageSource
from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.learning.run.execute import Result, RunPaths, execute
from ctvr.orchestrator.settings.presets import with_recipe
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.synthetic.images import NAME, SETTINGS, paint, render_images
from tests.refusing import refused

CPU = torch.device("cpu")
SMALL = {"optim.epochs": 2, "data.batch_size": 4, "evaluation.knn_k": 3}
TRAIN, TEST = 5, 4


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> str:
    """Two tasks of two classes of colored noise, of 8 pixels per side."""
    folder = tmp_path_factory.mktemp("images")
    random, tasks = np.random.default_rng(3), []
    for number in range(2):
        classes = [f"class{2 * number}", f"class{2 * number + 1}"]
        task: dict[str, object] = {"name": f"t{number}", "categories": classes}
        for split, count in (("train", TRAIN), ("test", TEST)):
            for name in classes:
                images = random.integers(0, 160, (count, 8, 8, 3)) + random.integers(0, 90, 3)
                np.save(folder / f"{split}_{name}.npy", images.astype(np.uint8))
            task[split] = [{"video": f"{split}_{c}", "path": f"{split}_{c}.npy", "category": c} for c in classes]
        tasks.append(task)
    text = {"format": 1, "name": "noise", "protocol": "ucl", "tasks": tasks, "settings": SETTINGS}
    (folder / "noise.json").write_text(json.dumps(text))
    return str(folder / "noise.json")


def run(method: str, manifest: str, root: Path, stop_after: int | None = None, **settings: object) -> Result:
    stream = load_stream(manifest, root)
    flat = {"method": method, "stream": manifest, **SMALL, **{k.replace("__", "."): v for k, v in settings.items()}}
    experiment = resolve(flat, stream.settings, with_recipe(method, (), stream.settings))

    def report(task, record, seconds):
        if record.done == stop_after:
            raise KeyboardInterrupt

    return execute(experiment, RunPaths(root), report=report, stream=stream)


@pytest.fixture(scope="module")
def whole(manifest, tmp_path_factory):
    """Run each method once."""
    made: dict[str, Result] = {}

    def of(method: str) -> Result:
        if method not in made:
            made[method] = run(method, manifest, tmp_path_factory.mktemp("whole"))
        return made[method]

    return of


QUICK = ("image_si", "image_lump")  # notes in buffers; a memory, its random state and views drawn again


@pytest.mark.parametrize(
    "method", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in IMAGE_METHODS]
)
def test_a_run_that_was_killed_equals_one_that_was_not(method, manifest, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(method, manifest, tmp_path, stop_after=1)
    resumed, expected = run(method, manifest, tmp_path), whole(method)
    assert resumed.resumed == 1
    assert resumed.record.metrics == expected.record.metrics
    assert resumed.record.training == expected.record.training
    state = expected.method.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in resumed.method.state_dict().items())
    # 10 images of a task in batches of 4, the last one of 2 is kept; of both tasks together 20 make 5
    assert resumed.record.steps == (10 if method == "image_multi_task" else 12)
    assert all(math.isfinite(value) for row in resumed.record.training for value in row.values())


def test_moments_of_sgd_cross_tasks_and_si_holds_what_its_gradients_noted(manifest, whole, tmp_path):
    kept, anew = whole("image_si").record.training, run("image_si", manifest, tmp_path, optim__carry_momentum=False)
    assert anew.record.training[:2] == kept[:2]
    assert anew.record.training[2] != kept[2]
    assert next(value for name, value in kept[-1].items() if name.endswith("loss/held")) > 0


def features(result: Result, data: ImageData, task: int, split: str) -> np.ndarray:
    batches = data.videos(task, split, range(data.num_videos(task, split)), 3)
    with torch.no_grad():
        return np.concatenate([F.normalize(result.method.encode_video(x), dim=-1).numpy() for x in batches])


def test_the_matrices_are_those_of_a_plain_vote_among_the_images_of_a_task(whole, manifest, tmp_path):
    result = whole("image_si")
    stream = result.stream
    data = ImageData(stream, ImageSource(stream, Store.open(str(tmp_path)), DataConfig()), DataConfig(), CPU)
    result.method.eval()
    for task in range(2):
        bank, test = features(result, data, task, "train"), features(result, data, task, "test")
        for matrix, k in ((result.record.own, 2), (result.record.union, 3)):  # two tasks; evaluation.knn_k
            right = 0
            for row, image in enumerate(test):
                like = bank @ image
                near = np.argsort(-like)[:k]
                votes = [sum(np.exp(like[n] / 0.1) for n in near if n // TRAIN == c) for c in range(2)]
                right += int(np.argmax(votes)) == row // TEST
            assert matrix[1][task] == pytest.approx(100 * right / len(test))
    own, metrics = result.record.own, result.record.metrics
    assert metrics[1]["stream/knn/forgetting"] == pytest.approx(own[0][0] - own[1][0])
    assert metrics[1]["stream/knn/accuracy"] == pytest.approx(np.mean(own[1]))
    assert "stream/knn/forgetting" not in metrics[0]  # forgetting is undefined after one task


def test_batch_has_two_views_and_each_image_once(manifest, tmp_path):
    stream = load_stream(manifest, tmp_path)
    config = DataConfig(batch_size=4)
    data = ImageData(stream, ImageSource(stream, Store.open(str(tmp_path)), config), config, CPU)
    torch.manual_seed(0)
    batches = list(data.train_batches([1], 0, 1, 0))
    assert [len(batch.frames) for batch in batches] == data.batch_sizes([1], 0, 1, 0) == [4, 4, 2]
    assert data.steps([1]) == 3
    every = torch.cat([batch.frames for batch in batches])
    order = torch.cat([batch.video_ids for batch in batches])
    assert sorted(order.tolist()) == list(range(10, 20))
    categories = torch.cat([batch.categories for batch in batches])
    assert torch.equal(categories, order // TRAIN)
    plain = np.concatenate([np.load(Path(manifest).parent / f"train_class{c}.npy") for c in (2, 3)])
    expected = torch.from_numpy(plain[order - 10]).permute(0, 3, 1, 2) / 255
    assert torch.equal(every[:, 2], expected)
    assert not torch.equal(every[:, 0], every[:, 1])
    again, _ = data.pairs([12])
    one = next(iter(data.videos(1, "train", [2], 1)))
    assert torch.equal(again, one)
    assert one.shape == (1, 1, 3, 8, 8)


def test_methods_and_streams_of_the_other_kind_are_refused_in_one_line(manifest, tmp_path):
    def refuses(method, setting, write, value, **settings):
        call = partial(run, method, manifest, tmp_path, **settings)
        refused(call, value, settings=(setting,), write=(write,) if write else ())

    tiny = {"backbone.name": "tiny-clip"}
    refuses("clip4clip", "method", "", "noise", **tiny, backbone__weights="shipped")
    refuses("image_si", "", "", "'random'", **tiny)
    refuses("image_si", "workers", "workers=1", "workers", workers=2)
    refuses("image_si", "data.augment", "data.augment=none", "crop_flip", data__augment="crop_flip")
    refuses("image_si", "optim.carry_momentum", "optim.name=sgd", "sgd", optim__name="adamw")
    refuses("image_si", "method.base", "method.base=image_finetune", "image_bmu_moco", method__base="image_bmu_moco")
    assert {find_method(name).domain for name in METHODS} == {"videos"}
    assert {find_method(name).domain for name in IMAGE_METHODS} == {"images"}


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 8, 8, 3)), "uint8"),
        (np.zeros((2, 8, 9, 3), np.uint8), "shape"),
        (np.zeros((0, 8, 8, 3), np.uint8), "uint8"),
        (np.zeros((2, 4, 4, 3), np.uint8), "shape"),
        (np.array([{}]), "cannot be read as an array"),
    ],
)
def test_what_is_no_array_of_images_is_said_so(array, message, manifest, tmp_path):
    stream = load_stream(manifest, tmp_path)
    source = ImageSource(stream, Store.open(str(tmp_path)), DataConfig())
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(VideoError, match=message):
        source.load(type(stream.tasks[0].train[0])("x", str(tmp_path / "x.npy"), None, "class0", ()))


def test_the_embedded_images_are_painted_once_and_alike(tmp_path):
    stream: Stream = load_stream(NAME, tmp_path)
    assert [len(task.categories) for task in stream.tasks] == [2] * 5
    assert (stream.domain, stream.has_val, stream.has_features) == ("images", False, False)
    item = stream.tasks[1].test[1]
    content = Path(item.path).read_bytes()
    images = np.load(item.path)
    assert images.shape == (32, 32, 32, 3)
    assert np.array_equal(images[7], paint(item.category, [0, 3, 1, 7]))
    Path(item.path).write_bytes(content[:100])
    render_images(tmp_path)
    assert Path(item.path).read_bytes() == content
    everything = {np.load(one.path).tobytes() for task in stream.tasks for one in (*task.train, *task.test)}
    assert len(everything) == 20


@pytest.mark.parametrize(
    "method", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in IMAGE_METHODS]
)
def test_an_untrained_network_forgets_nothing_by_the_k_that_stays(method, manifest, tmp_path):
    untrained = run(method, manifest, tmp_path, optim__epochs=0)
    assert untrained.record.steps == 0
    assert [row[0] for row in untrained.record.union] == [untrained.record.union[0][0]] * 2
    assert untrained.record.metrics[-1]["stream/knn/forgetting_fixed"] == 0


def test_votes_count_the_tasks_so_far_and_the_number_of_the_settings(manifest, tmp_path, monkeypatch):
    asked, votes = [], knn.votes

    def noted(test, bank, labels, k, classes):
        asked.append(k)
        return votes(test, bank, labels, k, classes)

    monkeypatch.setattr(knn, "released_k", lambda tasks: 5 * tasks)
    monkeypatch.setattr(knn, "votes", noted)
    run("image_si", manifest, tmp_path, optim__epochs=1)
    assert asked == [5, 3, 10, 3, 10, 3]  # after the first task, then both after the second
