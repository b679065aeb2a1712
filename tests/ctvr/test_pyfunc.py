"""A stored model is an MLflow pyfunc: it maps texts to hits by its signature, without its runs folder or videos."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ctvr
from ctvr.orchestrator.learning.record.gallery_files import FEATURES, VIDEOS
from tests.refusing import refuses
from tests.small_stream import write_stream

pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")  # MLflow's own types
QUERIES = ["a red circle on the test", "the star is green"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ctvr.Run]:
    """Return the folder of a small stream with a run whose model is stored in MLflow."""
    root = tmp_path_factory.mktemp("kept")
    manifest = write_stream(root / "small", num_tasks=2)
    settings = {"optim.epochs": 1}
    return root, ctvr.run("clip4clip", manifest, settings=settings, runs=root / "runs", keep_model=True)


@pytest.fixture
def alone(kept: tuple[Path, ctvr.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the model as another machine has it: its files and no others of ours."""
    root, _ = kept
    (model,) = {path.parent for path in (root / "runs").rglob("MLmodel")}
    shutil.copytree(model, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CTVR_RUNS", raising=False)
    return tmp_path / "model"


def rows_of(table: Any) -> list[tuple[str, int, float, str]]:
    return [(row.text, row.rank, round(row.score, 5), row.video) for row in table.itertuples()]


def expected(run: ctvr.Run, k: int) -> list[tuple[str, int, float, str]]:
    found = run.model().search(QUERIES, k=k)
    return [(text, hit.rank, round(hit.score, 5), hit.video) for text, hits in zip(QUERIES, found) for hit in hits]


@pytest.mark.slow
def test_the_exported_model_works_without_the_runs_folder(kept, alone):
    pyfunc, pandas = pytest.importorskip("mlflow.pyfunc"), pytest.importorskip("pandas")
    model = pyfunc.load_model(str(alone))
    asked = pandas.DataFrame({"text": QUERIES})
    assert rows_of(model.predict(asked)) == expected(kept[1], 10)
    found = model.predict(asked, params={"k": 2})
    assert rows_of(found) == expected(kept[1], 2)
    assert set(found["path"]) == {""}  # the videos are not here
    assert not list(Path().glob("runs"))


def test_predictions_have_the_declared_signature(alone):
    pyfunc, pandas = pytest.importorskip("mlflow.pyfunc"), pytest.importorskip("pandas")
    model = pyfunc.load_model(str(alone))
    signature = model.metadata.signature
    assert signature.inputs.input_names() == ["text"]
    found = model.predict(pandas.DataFrame({"text": QUERIES}))
    kinds = dict(zip(signature.outputs.input_names(), signature.outputs.pandas_types()))
    assert list(found) == list(kinds)
    for name, kind in kinds.items():
        assert pandas.api.types.is_dtype_equal(found[name].astype(kind).dtype, kind)
        assert found[name].dtype.kind == {"text": "O", "rank": "i", "score": "f", "video": "O", "path": "O"}[name]
    assert {each.name: each.default for each in signature.params} == {"k": 10, "folder": ""}


def test_a_server_of_mlflow_answers_requests(kept, alone):
    scoring = pytest.importorskip("mlflow.pyfunc.scoring_server")
    model = scoring.load_model_with_mlflow_config(str(alone))
    body = json.dumps({"dataframe_records": [{"text": text} for text in QUERIES], "params": {"k": 1}})
    answer = scoring.invocations(body, "application/json", model, model.metadata.get_input_schema())
    assert answer.status == 200
    found = json.loads(answer.response)["predictions"]
    assert [(row["text"], row["rank"], round(row["score"], 5), row["video"]) for row in found] == expected(kept[1], 1)


def test_a_folder_of_videos_is_searched(kept, alone):
    pyfunc, pandas = pytest.importorskip("mlflow.pyfunc"), pytest.importorskip("pandas")
    folder = kept[0] / "small" / "videos"
    model = pyfunc.load_model(str(alone))
    found = model.predict(pandas.DataFrame({"text": QUERIES[:1]}), params={"k": 3, "folder": str(folder)})
    assert list(found["path"]) == [hit.path for hit in kept[1].model().search(QUERIES[0], 3, folder)]
    with refuses("k", "0"):
        model.predict(pandas.DataFrame({"text": QUERIES}), params={"k": 0})


def test_a_model_without_a_matching_gallery_is_refused(alone):
    text = json.loads((alone / VIDEOS).read_text())
    (alone / VIDEOS).write_text(json.dumps(text[:1]))
    with refuses(VIDEOS, FEATURES):
        ctvr.load(alone)
    (alone / VIDEOS).unlink()
    with refuses():
        ctvr.load(alone).search("a red circle")
