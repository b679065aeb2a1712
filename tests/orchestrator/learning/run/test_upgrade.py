"""Runs that exchange the backbone within a stream, over the index of the former model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ctvr
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.export_model import export_hf
from ctvr.orchestrator.jobs.find_model import find_run
from ctvr.orchestrator.jobs.load_model import load, load_task, load_task_checkpoints
from ctvr.orchestrator.jobs.serve import NewestModel
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.gallery_files import save_gallery
from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import restore_from_commits
from ctvr.orchestrator.learning.run.upgrade import TwoTokenizers
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.query_rank import read_all
from ctvr.orchestrator.tables.significance import read_ranks
from tests.orchestrator.learning.training.test_loop import Killed, numbers, same_weights

AGES = {"evaluation__reencode": "50,100", "evaluation__reencode_after": "all", "evaluation__unlearned_tasks": True}


def made(stream, small_stream, method="clip4clip", **more):
    new = {"upgrade__task": 2, "upgrade__backbone": "tiny-clip-stem"}
    settings = {key.replace("__", "."): value for key, value in {**new, **more}.items()}
    return resolve({"method": method, "stream": stream, "optim.epochs": 1, **settings}, small_stream.settings)


def timeless(record):
    for row in record.metrics:
        row.pop("stream/index/seconds", None)
    return numbers(record)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "killed_after", "queries"),
    [
        ("clip4clip", 0, "both"),
        ("qdc", 1, "both"),
        ("framefusion_moe", 1, "map"),
        ("er_ring", 1, "both"),
    ],
)
def test_a_run_killed_at_or_within_an_upgrade_ends_as_an_unbroken_one(
    method, killed_after, queries, manifest, small_stream, runs
):
    experiment = made(manifest, small_stream, method, upgrade__queries=queries, **AGES)
    unbroken = execute(experiment, RunPaths(runs), fresh=True)

    def die(task, record, seconds):
        if task.index == killed_after:
            raise Killed

    with pytest.raises(Killed):
        execute(experiment, RunPaths(runs), report=die)
    resumed = execute(experiment, RunPaths(runs))
    assert resumed.resumed == killed_after + 1
    assert timeless(resumed.record) == timeless(unbroken.record)
    assert same_weights(resumed, unbroken)
    assert resumed.record.done == 3


def test_the_tasks_before_are_those_of_a_run_without_an_upgrade_and_are_not_trained_again(manifest, small_stream, runs):
    plain = execute(made(manifest, small_stream, upgrade__task=0, upgrade__backbone=""), RunPaths(runs))
    result = execute(made(manifest, small_stream, upgrade__task=3), RunPaths(runs))
    assert plain.key != result.key
    assert result.reused == 2
    assert result.record.union[:2] == plain.record.union[:2]
    store = RunPaths(runs).open_store()
    old, new = (Commits(store, run.key).galleries(3) for run in (plain, result))
    assert all(torch.equal(a, b) for a, b in zip(old[:2], new[:2]))  # the index is not encoded again
    assert not torch.equal(old[2], new[2])
    commit = store.get_json("commits", f"{result.key}/task_003")
    assert {"weights", "upgrade.backbone"} <= set(commit["made_of"])
    assert commit["made_of"]["weights"] != commit["made_of"]["upgrade.backbone"]
    again = execute(made(manifest, small_stream, upgrade__task=0, upgrade__backbone="", seed=0), RunPaths(runs))
    assert numbers(again.record) == numbers(plain.record)


@pytest.mark.parametrize("queries", ["both", "map"])
def test_columns_of_ages_work_on_it(queries, manifest, small_stream, runs):
    record = execute(made(manifest, small_stream, upgrade__queries=queries, **AGES), RunPaths(runs)).record
    last = record.metrics[-1]
    assert last["stream/index/r1_0"] == last["stream/t2v/r1"]
    assert last["stream/index/gap"] == pytest.approx(last["stream/index/gained"] - last["stream/index/lost"])
    assert last["task_03/index/gap_own"] == 0
    updates = [[row.get(f"stream/index/update{name}") for name in ("", "_gained", "_lost")] for row in record.metrics]
    assert updates[0] == [None] * 3
    if queries == "both":  # the captions and videos of task 1 are those of the old model, before and after the upgrade
        assert updates[1] == [0.0] * 3
    assert all(change == pytest.approx(gained - lost) for change, gained, lost in updates[1:])
    row = record.metrics[1]  # one old task: its own gallery is all that is old
    possible = record.own[1][0] + row["task_01/index/gap_own"] - record.own[0][0]
    assert row.get("stream/index/update_gain") == (pytest.approx(updates[1][0] / possible) if possible else None)
    assert set(record.aged_ranks) == {"0", "50", "100"}
    assert record.aged_ranks["0"] == record.ranks


@pytest.mark.slow
def test_a_re_encoded_index_is_that_of_the_new_model_alone(manifest, small_stream, runs):
    """At 100 % no feature of the old model is searched, and both methods give the same ranks."""
    both, mapped = (
        execute(made(manifest, small_stream, upgrade__queries=queries, **AGES), RunPaths(runs)).record
        for queries in ("both", "map")
    )
    assert both.aged_ranks["100"] == mapped.aged_ranks["100"]
    assert both.aged_ranks["0"] != mapped.aged_ranks["0"]


def test_own_galleries_of_old_tasks_are_answered_by_the_old_model_as_before(manifest, small_stream, runs):
    """The scale of a part changes no rank within it, and the old model no longer changes."""
    record = execute(made(manifest, small_stream), RunPaths(runs)).record
    assert [row[0] for row in record.own] == [record.own[0][0]] * 3


def ranks_of(model):
    """Search by every caption of the gallery; return query -> rank of its video."""
    named = {f"{i.video}#{n}": text for b in model.gallery() for i in b.items for n, text in enumerate(i.captions)}
    found = model.search(list(named.values()), k=1000)
    ranks = (
        next(hit.rank for hit in hits if hit.video == query.partition("#")[0]) for query, hits in zip(named, found)
    )
    return read_all(dict(zip(named, ranks)))


@pytest.mark.parametrize(
    ("method", "queries"),
    [("clip4clip", "both"), ("framefusion_moe", "both"), ("qdc", "map")],
)
def test_a_search_finds_what_the_run_has_ranked(method, queries, manifest, small_stream, runs, tmp_path):
    experiment = made(manifest, small_stream, method, upgrade__queries=queries, **AGES)
    result = execute(experiment, RunPaths(runs))
    store = RunPaths(runs).open_store()
    trained = restore_from_commits(experiment, Commits(store, result.key), 3, small_stream)
    model = Model("upgraded", trained, store, small_stream)
    assert [block.task for block in model.gallery()] == [-1, 0, 1]
    assert ranks_of(model) == result.record.ranks
    assert model.search("a red circle", k=2)[0].score >= model.search("a red circle", k=2)[1].score
    # without the stored features, all videos are encoded by the new model
    afresh = Model("upgraded", replace(trained, galleries=()), store, small_stream)
    assert ranks_of(afresh) == result.record.aged_ranks["100"]
    # from a folder alone: features are saved there, and no file of weights is read
    after = small_stream.after(1)
    save_model(result.method, experiment.settings, after, tmp_path)
    save_gallery(trained.galleries, after, "test", tmp_path)
    alone = load(str(tmp_path), ExecutionConfig(runs=tmp_path / "none"))
    assert [block.task for block in alone.gallery()] == [-1, 0, 1]
    assert ranks_of(alone) == result.record.ranks


@pytest.mark.slow
def test_a_run_is_searched_before_at_and_after_its_upgrade(manifest, runs, capsys, tmp_path):
    settings = {"upgrade.task": 2, "upgrade.backbone": "tiny-clip-stem", "optim.epochs": 1}
    ctvr.run("clip4clip", manifest, settings=settings, runs=runs, keep_model=True)
    execution = ExecutionConfig(runs=runs)
    run = find_run("clip4clip", execution)
    stream = execution.stream_of(run)
    model = load("clip4clip", execution)
    videos = [item.path for item in stream.items(0, "test")]
    ranks = read_ranks(execution.tracker(), run.run_id).of
    assert ranks_of(model) == ranks
    for done in (2, 3):  # the weights of the last two tasks are kept
        partly = load_task(run, execution, stream, done)
        assert [block.task for block in partly.gallery()] == list(range(-1, done - 1))
        assert len(partly.search("a red circle", k=1000)) == sum(len(stream.items(i, "test")) for i in range(done))
    assert ranks_of(load_task(run, execution, stream, 3)) == ranks
    assert ranks_of(load(str(execution.tracker().download(run.run_id, "model")), execution)) == ranks
    export_hf(tmp_path / "hub", "clip4clip", execution)
    hub = load(str(tmp_path / "hub"), execution)
    assert torch.equal(hub.encode_text("a red circle"), model.encode_text("a red circle"))
    # files of the user are the new model's
    hits = model.search("a red circle", k=3, videos=videos)
    shown = model.trained.method.base.score(
        model.trained.method.base.encode_text(model._tokens(["a red circle"])), model.encode_video(videos)
    )
    assert [hit.path for hit in hits] == [videos[row] for row in shown[0].argsort(descending=True)[:3]]
    newest = NewestModel("clip4clip", execution, Path(videos[0]).parent).load()
    assert newest.search("a red circle", 2)[0].path in {str(p.resolve()) for p in Path(videos[0]).parent.iterdir()}
    caption = stream.items(0, "test")[0].captions[0]
    assert main(["search", caption, "--model", "clip4clip", "--runs", str(runs), "-k", "2"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        hit.video for hit in model.search(caption, k=2)
    ]
    with pytest.raises(ConfigError, match=r"changes its backbone at task 2 \(upgrade\.task\)"):
        next(load_task_checkpoints("clip4clip", execution))


def test_a_queried_model_does_not_remember_every_text():
    tokens = TwoTokenizers(*[lambda texts: torch.tensor([[len(text), 9] for text in texts])] * 2, None, most=2)
    for length in range(1, 9):
        tokens(["a" * length])
        assert tokens.translate(torch.tensor([[length, 9]])).tolist() == [[length, 9]]
    assert len(tokens._known) <= 3


def test_old_tokens_of_a_caption_are_found_by_its_new_ones():
    def new(texts):
        return torch.tensor([[len(text), 9, 0, 0] for text in texts])

    def old(texts):
        return torch.tensor([[1, len(text), 7, 8, 0] for text in texts])

    tokens = TwoTokenizers(new, old, None)
    assert torch.equal(tokens(["a", "abc"]), new(["a", "abc"]))
    assert tokens.translate(torch.tensor([[3, 9], [1, 9]])).tolist() == [[1, 3, 7, 8], [1, 1, 7, 8]]
    cut = TwoTokenizers(new, old, 3)
    cut(["abc"])
    assert cut.translate(torch.tensor([[3, 9, 0]])).tolist() == [[1, 3, 8]]  # the end of text is kept
