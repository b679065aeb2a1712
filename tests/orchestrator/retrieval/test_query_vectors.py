"""A model over imported features answers new texts: by given vectors, or by the text tower that the card names."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.methods.backbone.load import load_backbone
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.gallery_files import save_gallery
from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import restore_from_commits
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.retrieval.query_vectors import check_query_vectors, read_query_vectors
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses

VIDEOS, WIDTH = 24, 6
WORDS = ("a red circle", "a blue star", "two green squares")
CAPTIONS = [f"{WORDS[i % 3]} {'moves' if i % 2 else 'stays'} {i}" for i in range(VIDEOS)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Train heads on a stream whose captions tiny-clip has encoded: of unit vectors, with a prompt."""
    home = tmp_path_factory.mktemp("index")
    tower = load_backbone("tiny-clip", "shipped")
    with torch.no_grad():
        texts = tower.text(tower.tokenize([f"a video of {text}" for text in CAPTIONS])).numpy()
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    random = np.random.default_rng(0)
    videos = texts @ random.standard_normal((texts.shape[1], WIDTH)) + 0.05 * random.standard_normal((VIDEOS, WIDTH))
    videos /= np.linalg.norm(videos, axis=1, keepdims=True)
    with (home / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["video", "caption", "split", "task"])
        rows = [(f"v{i}", CAPTIONS[i], "train" if i % 4 else "test", 1 + i // 12) for i in range(VIDEOS)]
        writer.writerows(rows)
    (home / "features").mkdir()
    np.savez(home / "features/videos.npz", **{f"v{i}": each.astype(np.float32) for i, each in enumerate(videos)})
    np.save(home / "captions.npy", texts.astype(np.float32))
    (home / "features/features.yaml").write_text("embedder: tiny-clip\nnormalisation: unit\nprompt: a video of {}\n")
    (home / "runs/streams").mkdir(parents=True)
    parts = (home / "features/videos.npz", home / "captions.npy", home / "runs/streams/mine.json")
    import_features(home / "table.csv", *parts, "mine")
    return home


def answering(home, center=False, name="mine"):
    """Return the model of a run on the stream, as `load_model.load` builds it; it is trained once."""
    stream, places = load_stream("mine", home / "runs"), RunPaths(home / "runs")
    settings = {"method": "head_linear", "stream": "mine", "optim.epochs": 3, "data.batch_size": 6, "method.lr": 1e-2}
    experiment = resolve({**settings, "data.center": center}, stream.settings)
    store, key = places.open_store(), execute(experiment, places, stream=stream).key
    return Model(name, restore_from_commits(experiment, Commits(store, key), 2, stream), store, stream)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "centred"])
def model(request, home):
    return answering(home, request.param)


def ranked(model, home, vectors):
    """Rank the index in numpy by the imported vectors and the head's matrices: names of each query, best first."""
    head = {name: value.numpy().astype(np.float64) for name, value in model.trained.method.state_dict().items()}
    files, given = np.load(home / "features/videos.npz"), np.asarray(vectors, np.float64)
    items = [item for block in model.gallery() for item in block.items]
    index = np.stack([files[item.video].astype(np.float64) for item in items])
    if model.settings["data.center"]:
        train = [i for i in range(VIDEOS // 2) if i % 4]
        index = index - np.stack([files[f"v{i}"] for i in train]).mean(axis=0, dtype=np.float64)
        given = given - np.load(home / "captions.npy")[train].mean(axis=0, dtype=np.float64)
    x = given / np.linalg.norm(given, axis=1, keepdims=True)
    q = (x - head["maps.queries.center"]) @ head["maps.queries.start"] + x @ head["maps.queries.weight"]
    q = q + head["maps.queries.bias"]
    scores = (q / np.linalg.norm(q, axis=1, keepdims=True)) @ (index / np.linalg.norm(index, axis=1, keepdims=True)).T
    order = (-scores).argsort(axis=1)
    return [[items[i].video for i in row] for row in order], -np.sort(-scores, axis=1)


def test_given_vectors_rank_the_index_as_numpy_does(model, home):
    vectors = np.random.default_rng(1).standard_normal((5, 96)).astype(np.float32)
    names, scores = ranked(model, home, vectors)
    found = model.search(vectors, k=100)
    assert [[hit.video for hit in hits] for hits in found] == names
    np.testing.assert_allclose([[hit.score for hit in hits] for hits in found], scores, atol=1e-5)
    assert len(names[0]) == VIDEOS // 4
    for one in (vectors[3], torch.from_numpy(vectors[3])):  # (d',) is one query
        assert [hit.video for hit in model.search(one, k=2)] == names[3][:2]
    assert model.encode_text(vectors[:2]).shape == (2, WIDTH)


def test_the_vector_of_a_caption_finds_what_the_caption_finds(model, home):
    row = model.search(np.load(home / "captions.npy")[4], k=3)
    assert [hit.video for hit in row] == [hit.video for hit in model.search(CAPTIONS[4], k=3)]


def test_new_texts_are_encoded_with_the_prompt_and_length_of_the_card(model, home):
    tower = load_backbone("tiny-clip", "shipped")
    texts = ["a yellow star that nobody described", CAPTIONS[0], "a red circle"]
    with torch.no_grad():
        vectors = tower.text(tower.tokenize([f"a video of {text}" for text in texts])).numpy()
    names, _ = ranked(model, home, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    assert [[hit.video for hit in hits] for hits in model.search(texts, k=100)] == names


def test_a_saved_folder_answers_as_its_run(model, home, tmp_path):
    save_model(model.trained.method, model.settings, model.stream, tmp_path)
    save_gallery(model.trained.galleries, model.stream, "test", tmp_path)
    vectors = np.random.default_rng(2).standard_normal((4, 96))
    expected = [[hit.video for hit in hits] for hits in model.search(vectors, k=6)]
    for place in (home / "runs", tmp_path / "none"):  # with its stream, and alone
        found = load(str(tmp_path), ExecutionConfig(runs=place))
        assert [[hit.video for hit in hits] for hits in found.search(vectors, k=6)] == expected
    with refuses("a red circle", remedy=True):
        found.search("a red circle")
    (tmp_path / "gallery.json").unlink()
    for place, is_here in ((home / "runs", True), (tmp_path / "none", False)):  # the stream's vectors, encoded again
        found = load(str(tmp_path), ExecutionConfig(runs=place))
        if is_here:
            assert [[hit.video for hit in hits] for hits in found.search(vectors, k=6)] == expected
            assert [hit.video for hit in found.search(CAPTIONS[3], k=6)] == [h.video for h in model.search(CAPTIONS[3])]
        else:
            with refuses("mine", remedy=True):
                found.search(vectors)


@pytest.mark.parametrize(
    ("card", "values"),
    [
        ("embedder: tiny-clip-stem\n", ["tiny-clip-stem"]),  # another space
        ("embedder: tiny-clip\nprompt: a photo of {}\n", ["tiny-clip"]),
        ("embedder: e5-large\n", ["e5-large"]),
        ("embedder: ViT-B-32\nrevision: ./weights.pt\n", ["ViT-B-32"]),
        ("", []),
    ],
)
def test_an_encoder_that_does_not_give_the_stored_vectors_is_refused_in_one_line(home, tmp_path, card, values):
    shutil.copytree(home / "runs", tmp_path / "runs")
    (file,) = tmp_path.glob("runs/streams/mine/*/features.yaml")
    file.write_text(card) if card else file.unlink()
    other = answering(tmp_path, name="head_linear")
    with refuses("a text", *values, where="model head_linear") as caught:
        other.search("a text")
    assert "--vectors" in caught.value.remedy
    assert other.search(CAPTIONS[0], k=1)  # an imported vector


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (np.ones((2, 3, 4)), ["(2, 3, 4)"]),
        (np.array([[1.0, np.nan]]), []),
        (np.array([[1.0, 2.0], [0.0, 0.0]]), [1]),
        (np.zeros((0, 4)), ["(0, 4)"]),
        (np.array(["text"]), []),
    ],
)
def test_arrays_that_are_not_vectors_are_one_line(tmp_path, array, values):
    with refuses(*values, where="search", remedy=True):
        check_query_vectors(array)
    np.save(tmp_path / "q.npy", array)
    with refuses(*values, remedy=True):
        read_query_vectors(tmp_path / "q.npy")


def test_vectors_of_another_width_and_videos_are_refused(model):
    with refuses(95, 96, remedy=True):
        model.search(np.ones((1, 95)))
    with refuses(remedy=True):
        model.search("a red circle", videos=Path(__file__).parent)


@pytest.mark.slow
def test_the_command_searches_by_a_file_of_vectors(home, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(home)
    assert main(["run", "head_linear", "mine", "optim.epochs=1"]) == 0
    np.save(tmp_path / "queries.npy", np.load("captions.npy")[:2])
    capsys.readouterr()
    assert main(["search", "--vectors", str(tmp_path / "queries.npy"), "--model", "head_linear", "-k", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = load("head_linear", ExecutionConfig(runs=home / "runs")).search(np.load("captions.npy")[:2], k=2)
    assert [line for line in lines if line.startswith("'")] == ["'queries.npy[0]'", "'queries.npy[1]'"]
    assert [line.split()[2] for line in lines if line[:4].strip()[:1].isdigit()] == [
        hit.video for hits in expected for hit in hits
    ]
    assert main(["search", "--vectors", str(tmp_path / "gone.npy"), "--model", "head_linear"]) == 2
    assert main(["search", "words", "--vectors", str(tmp_path / "queries.npy"), "--model", "head_linear"]) == 2
    assert main(["search", "--model", "head_linear"]) == 2
