"""A search with a trained model gives the evaluation's results, in the stored gallery and in plain files."""

import shutil

import numpy as np
import pytest
import torch

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.retrieval.model import Model
from tests.refusing import refuses


@pytest.fixture(scope="module")
def execution(learned) -> ExecutionConfig:
    return ExecutionConfig(runs=learned)


@pytest.fixture(scope="module", params=["zero_shot", "framefusion_moe"])
def model(request, execution) -> Model:
    return load(request.param, execution)


def captions(model: Model) -> dict[str, str]:
    items = [item for block in model.gallery() for item in block.items]
    return {f"{item.video}#{n}": text for item in items for n, text in enumerate(item.captions)}


def test_a_caption_finds_its_video_at_the_rank_that_the_run_has_stored(model, execution):
    """framefusion_moe encodes a caption again for each task; the weights of the last task come from the store."""
    from ctvr.orchestrator.streams.query_rank import read_all
    from ctvr.orchestrator.tables.significance import read_ranks

    tracker = execution.tracker()
    stored = read_ranks(tracker, tracker.find_runs(tags={"ctvr.method": model.method})[-1].run_id)
    texts = captions(model)
    found = model.search(list(texts.values()), k=100)
    ranks = {query: next(hit.rank for hit in hits if hit.video == query.partition("#")[0])
             for query, hits in zip(texts, found)}  # fmt: skip
    assert read_all(ranks) == stored.of
    one = model.search(next(iter(texts.values())), k=2)
    assert [hit.video for hit in one] == [hit.video for hit in found[0][:2]]
    assert [hit.score for hit in one] == pytest.approx([hit.score for hit in found[0][:2]])
    assert one[0].score >= one[1].score
    assert one[0].captions[0].startswith("a ")


def test_the_same_videos_as_plain_files_have_the_same_features(model):
    block = model.gallery()[-1]
    features = model.encode_video([item.path for item in block.items])
    torch.testing.assert_close(features, block.features, rtol=0, atol=1e-5)
    texts = model.encode_text(["a red circle", "a blue star"])
    assert texts.shape == (2, 96)
    torch.testing.assert_close(model.encode_text("a blue star"), texts[1:], rtol=0, atol=1e-5)
    folder = block.items[0].path.rpartition("/")[0]
    assert {hit.path.rpartition("/")[0] for hit in model.search("a blue star", k=3, videos=folder)} == {folder}


def test_a_text_that_names_no_task_is_read_as_of_the_last_one(model):
    of_tasks = [model.encode_text("a red circle", block.task) for block in model.gallery()]
    assert len(of_tasks) > 1
    assert torch.equal(model.encode_text("a red circle"), of_tasks[-1])
    differs = [not torch.equal(found, of_tasks[-1]) for found in of_tasks[:-1]]
    assert differs == [model.trained.method.declared.task_conditioned_text] * len(differs)


def test_every_name_of_a_run_leads_to_it(execution, tmp_path, monkeypatch, caplog):
    prepared = []
    monkeypatch.setattr("ctvr.orchestrator.retrieval.model.set_determinism", lambda *given: prepared.append(given))
    run = execution.tracker().find_runs(tags={"ctvr.method": "framefusion_moe"})[0]
    uploaded = execution.tracker().download(run.run_id, "model")
    names = [run.run_id[:8], run.name, str(uploaded)]
    video = next(iter(execution.runs.glob("small/videos/*.mp4")))
    found = [load(name, execution).encode_video(video) for name in names]
    found.append(load(str(uploaded), ExecutionConfig(runs=tmp_path / "none")).encode_video(video))
    assert prepared == len(found) * [(Model.__dataclass_fields__["device"].default_factory(), True, "fp32")]
    assert all(torch.equal(each, found[0]) for each in found)
    assert not (tmp_path / "none").exists(), "a folder alone makes no runs folder"
    by_r1 = {r.run_id: r.last("stream/t2v/r1")[1] for r in execution.tracker().find_runs()}
    best = load("best-small", execution)
    assert "no search has chosen a model of small on validation videos; using the run with" in caplog.text
    assert best.settings["method"] in {r.settings["method"] for r in execution.tracker().find_runs() if
                                       by_r1[r.run_id] == max(by_r1.values())}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("zero_shto", "'zero_shto' 'zero_shot' best-small"),
        ("best-smal", "'smal' 'best-small'"),
        ("lora", "lora run"),
    ],
)
def test_a_model_that_is_not_there_is_one_line(execution, name, values):
    with refuses(*values.split()):
        load(name, execution)


def test_what_cannot_be_searched_is_one_line(execution, tmp_path):
    model = load("zero_shot", execution)
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    (tmp_path / "empty").mkdir()
    for call, value in (
        (lambda: model.search(" "), "search"),
        (lambda: model.search("a", k=0), "0"),
        (lambda: model.search(np.ones((1, 96))), "zero_shot"),
        (lambda: model.search("a", videos=tmp_path / "empty"), tmp_path / "empty"),
        (lambda: model.search("a", videos=tmp_path / "gone.mp4"), "gone.mp4"),
    ):
        with refuses(value):
            call()
    with pytest.raises(VideoError, match=r"broken\.mp4"):
        model.search("a", videos=tmp_path / "broken.mp4")
    with refuses(1, "broken.mp4"):
        model.search("a", videos=tmp_path)


def test_a_folder_is_searched_without_what_cannot_be_read(execution, tmp_path, caplog):
    model = load("zero_shot", execution)
    item = model.gallery()[-1].items[0]
    (tmp_path / "below").mkdir()
    shutil.copy(item.path, tmp_path / "below" / "a.M4V")  # an ending that is not the container's
    shutil.copy(item.path, tmp_path / "._a.mp4")
    (tmp_path / "broken.wmv").write_bytes(b"no video")
    (tmp_path / "notes.txt").write_text("no video")
    (tmp_path / "gone.mp4").symlink_to(tmp_path / "nowhere.mp4")
    with caplog.at_level("INFO"):
        hits = model.search("a blue star", k=5, videos=tmp_path)
    assert [hit.video for hit in hits] == ["below/a"]
    assert "1 of 2 files are left out, the first: " in caplog.text
    assert "broken.wmv" in caplog.text
    assert "1 file without" in caplog.text  # notes.txt
