import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from ctvr.methods.base import l2_normalize
from ctvr.methods.layers.feature_maps import ridge_map
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.data.arrays import read_features
from ctvr.orchestrator.data.batches import tasks_of
from ctvr.orchestrator.data.imported_features import START_NOISE, frame_source, load_vectors
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import load_trained, make_method
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import missing_from, refuses

VIDEOS, WIDTH, TEXT = 24, 6, 10


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Import a stream of two tasks whose captions have other widths than the videos; `several`: three vectors each."""
    root = tmp_path_factory.mktemp("vectors")
    random = np.random.default_rng(0)
    topic = random.standard_normal((VIDEOS, 4))
    videos = (topic @ random.standard_normal((4, WIDTH)))[:, None] + 0.1 * random.standard_normal((VIDEOS, 5, WIDTH))
    texts = topic @ random.standard_normal((4, TEXT)) + 0.1 * random.standard_normal((VIDEOS, TEXT))
    rows = [(f"v{i}", f"caption {i}", "test" if i % 4 == 3 else "train", 1 + i // (VIDEOS // 2)) for i in range(VIDEOS)]
    with (root / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["video", "caption", "split", "task"])
        writer.writerows(rows)
    np.savez(root / "videos.npz", **{f"v{i}": each.astype(np.float32) for i, each in enumerate(videos)})
    np.save(root / "one.npy", texts.astype(np.float32))
    words = {row[1]: np.stack([texts[i]] * (1 + i % 3)).astype(np.float32) for i, row in enumerate(rows)}
    np.savez(root / "several.npz", **words)
    (root / "runs/streams").mkdir(parents=True)
    for name, file in (("one", "one.npy"), ("several", "several.npz")):
        out = root / f"runs/streams/{name}.json"
        import_features(root / "table.csv", root / "videos.npz", root / file, out, name)
    return root


def stream_of(root, name):
    return load_stream(name, root / "runs")


def measured(root, name="one", **settings):
    stream = stream_of(root, name)
    given = {"stream": name, "optim.epochs": 2, "data.batch_size": 4, **settings}
    return execute(resolve(given, stream.settings), RunPaths(root / "runs"), stream=stream).record


def test_captions_start_with_the_ridge_map_of_the_first_task(root):
    stream = stream_of(root, "one")
    towers = load_vectors(stream)
    videos, texts = np.load(root / "videos.npz"), np.load(root / "one.npy")
    first = [int(item.video[1:]) for item in stream.tasks[0].train]
    y = l2_normalize(torch.tensor(np.stack([videos[f"v{i}"].mean(axis=0) for i in first])))
    x = l2_normalize(torch.tensor(texts[first]))
    expected = ridge_map(x - x.mean(dim=0), y - y.mean(dim=0), START_NOISE).float()
    weight, center = towers.text.start()
    torch.testing.assert_close(weight, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(center, x.mean(dim=0), rtol=0, atol=1e-5)


def test_captions_of_several_vectors_come_back_as_they_were(root):
    towers = load_vectors(stream_of(root, "several"))
    texts = np.load(root / "several.npz")
    for caption in ("caption 0", "caption 1", "caption 2"):
        rows, counts = towers.text.table(towers.tokenize([caption])[:, 0])
        assert int(counts) == len(texts[caption])
        np.testing.assert_array_equal(rows[0, : int(counts)].numpy(), texts[caption])


def test_centring_subtracts_the_means_of_the_first_task_from_both(root, tmp_path):
    stream = stream_of(root, "one")
    store = RunPaths(tmp_path).open_store()
    config = resolve({"stream": "one", "method": "head_linear", "data.center": True}, stream.settings).data
    plain, centred = (frame_source(stream, store, replace(config, center=on), 1) for on in (False, True))
    first = stream.tasks[0].train
    mean = np.mean([plain.load(item).mean(axis=0) for item in first], axis=0)
    np.testing.assert_allclose(centred.load(first[0]), plain.load(first[0]) - mean, atol=1e-5)
    assert centred.key(first[0]) != plain.key(first[0])
    texts = np.load(root / "one.npy")
    rows = [int(item.video[1:]) for item in first]
    found = load_vectors(stream, is_centered=True).text.table.rows.numpy()
    np.testing.assert_allclose(found, texts - texts[rows].mean(axis=0), atol=1e-5)


def test_videos_stay_in_memory_up_to_its_bound(root, tmp_path, monkeypatch):
    stream = stream_of(root, "one")
    config = resolve({"stream": "one", "method": "head_linear"}, stream.settings).data
    items = stream.tasks[0].train
    reads = []
    monkeypatch.setattr(
        "ctvr.orchestrator.data.imported_features.read_features",
        lambda path: reads.append(path) or read_features(path),
    )
    monkeypatch.setattr("ctvr.orchestrator.data.imported_features.MEMORY", 3 * config.num_frames * WIDTH * 4)
    source = frame_source(stream, RunPaths(tmp_path).open_store(), config, 1)
    first, second = ([source.load(item) for item in items] for _ in range(2))
    assert reads == [item.path for item in (*items, *items[3:])]
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["one", "several"])
@pytest.mark.parametrize("method", ["head_linear", "head_ridge", "clip4clip"])
def test_a_run_learns_and_repeats(root, name, method):
    first = measured(root, name, method=method)
    assert first.done == 2
    assert first.metrics[-1]["stream/t2v/r1"] == measured(root, name, method=method).metrics[-1]["stream/t2v/r1"]


@pytest.mark.parametrize("settings", [{"method.side": "videos"}, {"optim.epochs": 0}])
def test_a_head_of_videos_and_an_untrained_head_start_from_the_map(root, settings):
    assert measured(root, method="head_linear", **settings).done == 2


def test_what_cannot_learn_on_them_is_refused_with_a_head(root):
    for method in ("zero_shot", "prompt"):
        with refuses(method, "head_linear", where="method"):
            measured(root, method=method)
    with refuses("tiny-clip", "one"):
        measured(root, method="head_linear", **{"backbone.name": "tiny-clip", "backbone.weights": "shipped"})


def test_what_only_features_have_is_refused_before_a_video_is_rendered(root, tmp_path, capsys):
    runs = ["--runs", str(tmp_path)]
    assert main(["run", "head_linear", "shapes-5", "data.center=true", *runs]) == 2
    assert not missing_from(capsys.readouterr().err, "data.center", "shapes-5")
    assert not list(tmp_path.glob("shapes-*"))
    assert main(["run", "head_linear", "one", "backbone.name=ViT-B-32", "--runs", str(root / "runs")]) == 2
    assert not missing_from(capsys.readouterr().err, "ViT-B-32", "one", "not used")


def test_a_damaged_file_of_captions_is_one_line(root, tmp_path):
    stream = stream_of(root, "several")
    broken = dict(np.load(stream.text_features))
    broken["starts"] = broken["starts"][:-1]
    np.savez(tmp_path / "texts.npz", **broken)
    with refuses(where="texts.npz"):
        load_vectors(replace(stream, text_features=str(tmp_path / "texts.npz")))


def test_a_saved_model_is_loaded_without_its_stream(root, tmp_path):
    stream = stream_of(root, "one")
    given = resolve({"stream": "one", "method": "head_linear", "optim.epochs": 1}, stream.settings)
    method = make_method(given, load_vectors(stream), stream)
    for task in tasks_of(stream):
        method.begin_task(task)
    save_model(method, given.settings, stream, tmp_path / "model")
    again = load_trained(tmp_path / "model")
    videos = torch.randn(3, 2, 1, WIDTH)
    assert torch.equal(again.method.encode_video(videos), method.eval().encode_video(videos))
    with refuses("a new caption"):
        again.clip.tokenize(["a new caption"])
