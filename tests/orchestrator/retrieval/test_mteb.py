"""A task with MTEB's interface gives the model's own results, from decoders or frames, in both directions."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.retrieval.mteb import MtebEncoder
from tests.refusing import refuses


class Decoder:
    """Decoder like torchcodec's: it returns frames (n, 3, H, W) by their numbers."""

    def __init__(self, path: str) -> None:
        with av.open(path) as video:
            self.frames = torch.stack(
                [torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1) for frame in video.decode(video=0)]
            )
            rate = float(video.streams.video[0].average_rate)
        self.metadata = SimpleNamespace(num_frames=len(self.frames), average_fps=rate)

    def get_frames_at(self, numbers: list[int]) -> SimpleNamespace:
        return SimpleNamespace(data=self.frames[numbers])


class Loader:
    """Loader like mteb's DataLoader: rows of a data set in batches of two, made by `collate_fn`."""

    def __init__(self, column: str, values: list[object]) -> None:
        self.dataset = SimpleNamespace(features={column: None})
        self.rows = [{column: value} for value in values]
        self.collate_fn = lambda rows: {column: torch.stack([row[column] for row in rows])}  # fails for decoders

    def __iter__(self):
        for start in range(0, len(self.rows), 2):
            yield self.collate_fn(self.rows[start : start + 2])


def retrieve(encoder, queries, corpus) -> np.ndarray:
    """Call an encoder as a retrieval task does."""
    about = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
    asked, found = (encoder.encode(loader, **about, batch_size=2) for loader in (queries, corpus))
    assert asked.dtype == found.dtype == np.float32
    assert asked.ndim == found.ndim == 2
    return encoder.similarity(asked, found).numpy()


@pytest.fixture(scope="module")
def videos(learned) -> list[str]:
    return sorted(str(path) for path in (learned / "small" / "videos").glob("*.mp4"))[:5]


@pytest.mark.parametrize("method", ["zero_shot", "framefusion_moe"])
def test_similarities_are_the_models_own(learned, videos, method):
    model = load(method, ExecutionConfig(runs=learned))
    texts = ["a red circle moves left", "a blue star", "a green square"]
    features = model.encode_video(videos)
    expected = model.trained.method.score(model.encode_text(texts), features).detach().numpy()
    decoders = [Decoder(path) for path in videos]
    encoder = MtebEncoder(model)
    asked = Loader("text", list(texts))
    asked.collate_fn = lambda rows: {"text": [row["text"] for row in rows]}
    np.testing.assert_allclose(retrieve(encoder, asked, Loader("video", decoders)), expected, atol=1e-5)
    frames = [decoder.frames for decoder in decoders]
    np.testing.assert_allclose(retrieve(encoder, Loader("video", frames), asked), expected.T, atol=1e-5)
    rows = encoder.encode(Loader("video", frames))
    pairs = encoder.similarity_pairwise(encoder.encode(asked), rows[:3])
    np.testing.assert_allclose(pairs.numpy(), np.diag(expected), atol=1e-5)


def test_features_that_keep_frames_lie_flat_and_are_scored_by_the_method(learned, videos, monkeypatch):
    """For a method whose video features are (T, d), its score is used and not a product of rows."""
    model = load("zero_shot", ExecutionConfig(runs=learned))
    method = model.trained.method
    plain = method.encode_video
    kept = lambda frames: torch.stack([plain(frames), -2 * plain(frames)], dim=1)
    monkeypatch.setattr(method, "encode_video", kept)
    monkeypatch.setattr(method, "score", lambda q, g: (q[:, None, None] * g[None]).sum(-1).amax(-1))
    encoder = MtebEncoder(model)
    texts, features = (
        encoder.encode([{"text": ["a red circle"]}]),
        encoder.encode([{"video": [Decoder(videos[0]).frames]}]),
    )
    assert features.shape == (1, 2 * texts.shape[1])
    first = float(texts[0] @ features[0][: texts.shape[1]])
    assert encoder.similarity(texts, features).item() == pytest.approx(max(first, -2 * first), abs=1e-6)
    several = encoder.encode([{"text": ["a red circle", "a blue star", "a green square"]}])
    kinds = encoder.encode([{"video": [Decoder(path).frames for path in videos[:2]]}])
    there = encoder.similarity(several, kinds)
    assert there.shape == (3, 2)
    np.testing.assert_array_equal(encoder.similarity(kinds, several).numpy(), there.mT.numpy())
    assert encoder.similarity(features, texts).item() == pytest.approx(max(first, -2 * first), abs=1e-6)


class Cache:
    """Cache like MTEB's default: a result that is stored under a name and a revision is not computed again."""

    def __init__(self) -> None:
        self.results: dict[tuple[str, str], np.ndarray] = {}

    def evaluate(self, encoder, texts, frames) -> np.ndarray:
        key = (encoder.name, encoder.revision)
        if key not in self.results:
            asked = encoder.encode([{"text": texts}])
            self.results[key] = encoder.similarity(asked, encoder.encode([{"video": frames}])).numpy()
        return self.results[key]


def test_two_models_of_one_name_have_results_of_their_own(learned, videos):
    texts, frames = ["a red circle", "a blue star"], [Decoder(path).frames for path in videos[:3]]
    first, second = (load("zero_shot", ExecutionConfig(runs=learned)) for _ in range(2))
    cache = Cache()
    before = cache.evaluate(MtebEncoder(first), texts, frames)
    assert MtebEncoder(first).revision == MtebEncoder(second).revision  # the same model: its results are found again
    assert MtebEncoder(first).name == f"ctvr/{first.run}"
    with torch.no_grad():
        for parameter in second.trained.method.parameters():
            if parameter.ndim == 2:
                parameter.mul_(torch.linspace(0.5, 2, parameter.shape[1]))
    after = cache.evaluate(MtebEncoder(second), texts, frames)
    assert len(cache.results) == 2
    assert not np.allclose(before, after)


def test_a_batch_that_mteb_cannot_use_is_one_line(learned, monkeypatch):
    encoder = MtebEncoder(load("zero_shot", ExecutionConfig(runs=learned)))
    with refuses("mteb", "audio", "texts", "videos"):
        encoder.encode([{"audio": [1]}])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refuses("pip", "install", where="mteb"):
        _ = encoder.mteb_model_meta


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mteb") is None, reason="mteb is not installed")
def test_a_task_of_mteb_has_the_recall_of_search(learned, tmp_path, monkeypatch):
    """MSVD's task, whose data set is a local folder here, runs from the reader of videos to the scores."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    import mteb

    pytest.importorskip("torchcodec.decoders", exc_type=(ImportError, RuntimeError))  # the latter without FFmpeg
    manifest = json.loads((learned / "small" / "small.json").read_text())
    (tmp_path / "msvd" / "test").mkdir(parents=True)
    items = [item for task in manifest["tasks"] for split in ("train", "test") for item in task[split]]
    rows = [{"file_name": item["path"], "caption": item["captions"][0]} for item in items]
    for row in rows:
        shutil.copy(learned / "small" / "videos" / row["file_name"], tmp_path / "msvd" / "test")
    (tmp_path / "msvd" / "test" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (task,) = mteb.get_tasks(["MSVDT2VRetrieval"])
    monkeypatch.setitem(task.metadata.dataset, "path", str(tmp_path / "msvd"))
    model = load("framefusion_moe", ExecutionConfig(runs=learned))
    (scores,) = mteb.evaluate(MtebEncoder(model), [task], cache=None).task_results[0].scores["test"]
    videos = [str(tmp_path / "msvd" / "test" / row["file_name"]) for row in rows]
    hits = model.search([row["caption"] for row in rows], len(rows), videos)
    places = [[Path(hit.video).stem for hit in each].index(Path(video).stem) for each, video in zip(hits, videos)]
    for k in (1, 3, 5, 10):
        assert scores[f"hit_rate_at_{k}"] == pytest.approx(np.mean(np.array(places) < k), abs=1e-4)
    assert 0 < scores["hit_rate_at_3"] < 1
