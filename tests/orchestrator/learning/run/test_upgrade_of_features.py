"""Runs that switch to a new embedder of imported features within a stream, and keep the old embedder's index."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

import ctvr
from ctvr.methods.base import l2_normalize
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.jobs.find_model import find_run
from ctvr.orchestrator.jobs.load_model import close, load
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.gallery_files import save_gallery
from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import restore_from_commits
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.newer import with_newer
from tests.orchestrator.learning.run.test_upgrade import ranks_of, timeless
from tests.orchestrator.learning.training.test_loop import Killed, same_weights
from tests.refusing import refuses

VIDEOS, TASKS = 180, 3
WIDTHS = {"old": (12, 12), "same": (12, 12), "wide": (16, 16), "odd": (10, 14)}  # of videos and captions
AGES = {"evaluation.reencode": "100", "evaluation.reencode_after": "all"}
QUICK = {"optim.epochs": 2, "data.batch_size": 10, "data.num_frames": 1}


def table_of(videos=range(VIDEOS), caption="caption {}"):
    each = VIDEOS // TASKS
    return [(f"v{i}", caption.format(i), "train" if i % 3 else "test", 1 + i // each) for i in videos]


def import_set(root, name, topic, widths=(12, 12), rows=None, seed=0, text=True):
    """Import vectors of topics (V, 8) by an embedder with spaces of its own."""
    random, rows = np.random.default_rng([seed, *name.encode()]), rows or table_of()
    numbers = [int(row[0][1:]) for row in rows]
    table, shared = root / f"{name}.csv", random.standard_normal((8, 16))
    videos, texts = (
        topic @ (shared[:, :width] if widths[0] == widths[1] else random.standard_normal((8, width)))
        + 0.1 * random.standard_normal((len(topic), width))
        for width in widths
    )
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("video", "caption", "split", "task"), *rows])
    np.savez(root / f"{name}.npz", **{f"v{i}": videos[i].astype(np.float32) for i in numbers})
    np.save(root / f"{name}.npy", texts[numbers].astype(np.float32))
    out = root / f"runs/streams/{name}.json"
    import_features(table, root / f"{name}.npz", root / f"{name}.npy" if text else None, out, name)
    return l2_normalize(torch.from_numpy(videos).float())


def draw_topics():
    return np.random.default_rng(1).standard_normal((VIDEOS, 8))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets")
    (root / "runs/streams").mkdir(parents=True)
    for name, widths in WIDTHS.items():
        import_set(root, name, draw_topics(), widths)
    return root


def made(root, method="head_linear", new="odd", task=2, **settings):
    upgrade = {"upgrade.task": task, "upgrade.stream": new} if task else {}
    stream = load_stream("old", root / "runs")
    return resolve({"method": method, "stream": "old", **QUICK, **upgrade, **settings}, stream.settings)


def run(root, *args, **settings):
    return execute(made(root, *args, **settings), RunPaths(root / "runs"))


def galleries(root, result):
    return Commits(RunPaths(root / "runs").open_store(), result.key).galleries(TASKS)


def searched_in(task):
    return [i for i in range(VIDEOS) if i % 3 == 0 and i // (VIDEOS // TASKS) == task]


@pytest.mark.parametrize("new", ["same", "wide", "odd"])
def test_the_index_keeps_its_vectors_and_new_videos_and_captions_are_those_of_the_new_set(root, new):
    plain, upgraded = run(root, task=0), run(root, new=new, task=3)
    assert plain.key != upgraded.key
    assert upgraded.reused == 2  # the tasks before are not trained again
    assert upgraded.record.union[:2] == plain.record.union[:2]
    old, found = galleries(root, plain), galleries(root, upgraded)
    assert all(torch.equal(a, b) for a, b in zip(old[:2], found[:2], strict=True))
    archive = np.load(root / f"{new}.npz")
    vectors = torch.from_numpy(np.stack([archive[f"v{i}"] for i in searched_in(2)]))
    torch.testing.assert_close(found[2], l2_normalize(vectors), rtol=0, atol=1e-6)  # `side=queries` leaves videos
    table = upgraded.method.base.backbone.text.table.rows
    assert torch.equal(table, torch.from_numpy(np.load(root / f"{new}.npy")))


@pytest.mark.parametrize(("method", "killed_after"), [("head_linear", 0), ("head_linear", 1), ("head_ridge", 1)])
@pytest.mark.parametrize("queries", ["both", "map"])
def test_a_run_killed_at_or_after_the_exchange_ends_as_an_unbroken_one(root, method, killed_after, queries, tmp_path):
    places = RunPaths(root / "runs", str(tmp_path / "store"))
    experiment = made(root, method, seed=3, **{"upgrade.queries": queries}, **AGES)
    unbroken = execute(experiment, places, fresh=True)

    def die(task, record, seconds):
        if task.index == killed_after:
            raise Killed

    with pytest.raises(Killed):
        execute(experiment, places, report=die)
    resumed = execute(experiment, places)
    assert resumed.resumed == killed_after + 1
    assert timeless(resumed.record) == timeless(unbroken.record)
    assert same_weights(resumed, unbroken)


def test_unmapped_captions_find_old_videos_by_chance_and_mapped_ones_better(root):
    """The sets have independent spaces of one width; a third of 60 videos is searched in each task."""
    chance = 100 / (VIDEOS // TASKS // 3)
    new, mapped, both = (
        run(root, "zero_shot", "same", **{"upgrade.queries": queries, "upgrade.map": "linear"}).record
        for queries in ("new", "map", "both")
    )
    assert both.own[2][0] == both.own[0][0] > 90
    assert new.own[2][0] <= 3 * chance
    assert mapped.own[2][0] > 3 * chance + 30
    assert new.own[2][1:] == mapped.own[2][1:] == both.own[2][1:]  # videos of the new embedder


@pytest.mark.parametrize("method", ["zero_shot", "head_linear", "head_ridge", "qdc", "drift_adapter"])
def test_a_re_encoded_index_is_that_of_the_new_set_alone(root, tmp_path, method):
    """The new model equals one that only learned the tasks from the exchange on, on the new set."""
    of = {"method.base": "head_linear", "base.side": "both"} if method in ("qdc", "drift_adapter") else {}
    new = "wide" if method == "zero_shot" else "odd"
    aged = run(root, method, new, **of, **AGES)
    assert aged.record.aged_ranks["100"] != aged.record.aged_ranks["0"]
    stream = load_stream(new, root / "runs")
    later = replace(stream, tasks=stream.tasks[1:])
    experiment = resolve({"method": method, "stream": new, **QUICK, **of}, stream.settings)
    alone = execute(experiment, RunPaths(tmp_path), stream=later)
    for (name, value), (other, its) in zip(
        aged.method.base.state_dict().items(), alone.method.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(value, its)
    if method == "zero_shot":  # an untrained model is the same for all tasks
        whole = execute(experiment, RunPaths(root / "runs"))
        assert aged.record.aged_ranks["100"] == whole.record.ranks


def test_both_and_mapped_captions_search_a_re_encoded_index_equally(root):
    both, mapped = (run(root, **{"upgrade.queries": queries}, **AGES).record for queries in ("both", "map"))
    assert both.aged_ranks["100"] == mapped.aged_ranks["100"]
    assert both.aged_ranks["0"] != mapped.aged_ranks["0"]


def test_the_key_holds_the_second_set(tmp_path):
    (tmp_path / "runs/streams").mkdir(parents=True)
    import_set(tmp_path, "old", draw_topics())
    keys = []
    for seed in (0, 0, 1):
        import_set(tmp_path, "odd", draw_topics(), WIDTHS["odd"], seed=seed)
        keys.append(run(tmp_path, "head_ridge").key)
    assert keys[0] == keys[1] != keys[2]
    centred = run(tmp_path, "head_ridge", **{"data.center": True})
    assert centred.key not in keys
    mean = centred.method.base.backbone.text.table.rows
    numbers = [row for row, each in enumerate(table_of()) if each[2:] == ("train", 2)]
    torch.testing.assert_close(mean[numbers].mean(dim=0), torch.zeros(14), rtol=0, atol=1e-5)  # not of task 1


@pytest.mark.parametrize(("new", "queries"), [("odd", "map"), ("wide", "both"), ("same", "new")])
def test_a_search_finds_what_the_run_has_ranked(root, tmp_path, new, queries):
    experiment = made(root, "head_linear", new, **{"upgrade.queries": queries}, **AGES)
    result = execute(experiment, RunPaths(root / "runs"))
    store, stream = (
        RunPaths(root / "runs").open_store(),
        with_newer(load_stream("old", root / "runs"), new, root / "runs"),
    )
    trained = restore_from_commits(experiment, Commits(store, result.key), TASKS, stream)
    model = Model("upgraded", trained, store, stream)
    assert [block.task for block in model.gallery()] == [-1, 0, 1]
    assert ranks_of(model) == result.record.ranks
    save_model(result.method, experiment.settings, stream.after(1), tmp_path)
    save_gallery(trained.galleries, stream.after(1), "test", tmp_path)
    alone = load(str(tmp_path), ExecutionConfig(runs=tmp_path / "none"))
    assert [block.features.shape[1] for block in alone.gallery()] == [12, WIDTHS[new][0], WIDTHS[new][0]]
    for name, value in result.method.state_dict().items():
        assert torch.equal(value.cpu(), alone.trained.method.state_dict()[name].cpu())
    with refuses("caption 0"):  # a folder has no captions' vectors
        alone.search("caption 0")
    close(alone)


@pytest.mark.slow
def test_a_recorded_run_is_loaded_until_its_second_set_changes(tmp_path):
    (tmp_path / "runs/streams").mkdir(parents=True)
    for name in ("old", "odd"):
        import_set(tmp_path, name, draw_topics(), WIDTHS[name])
    settings = {"upgrade.task": 2, "upgrade.stream": "odd", **QUICK}
    ctvr.run("head_linear", "old", settings=settings, runs=tmp_path / "runs")
    execution = ExecutionConfig(runs=tmp_path / "runs")
    found = find_run("head_linear", execution)
    assert execution.stream_of(found).newer.name == "odd"
    assert len(load("head_linear", execution).search("caption 0", k=3)) == 3
    with refuses("head_linear", remedy=True):
        load("head_linear", execution).search(np.ones(WIDTHS["odd"][1], np.float32))
    import_set(tmp_path, "odd", draw_topics(), WIDTHS["odd"], seed=1)
    assert execution.stream_of(found) is None


def refused(root, *words, **settings):
    given = {"new": "odd", "method": "head_linear"} | settings
    with refuses(*words) as caught:
        run(root, given.pop("method"), given.pop("new"), **given)
    return caught


def test_the_first_difference_of_the_sets_is_named(root):
    rows = [*table_of(range(VIDEOS - 1)), ("v179", "another", "train", 3)]
    import_set(root, "other", draw_topics(), rows=rows)
    caught = refused(root, "other", "old", "task_03", "train", "v179", "another", "179", new="other")
    assert caught.value.where == "upgrade.stream"


def test_what_is_impossible_is_refused_before_training(root):
    import_set(root, "untold", draw_topics(), text=False)
    before = {*(root / "runs/store").glob("commits/*/*")}
    assert refused(root, "untold", new="untold").value.where == "upgrade.stream"
    assert refused(root, "nowhere", new="nowhere").value.where == "upgrade.stream"
    assert refused(root, "12", "16", new="wide", **{"upgrade.queries": "new"}).value.where == "upgrade.queries"
    assert refused(root, "also", **{"evaluation.also": "wide"}).value.where == "evaluation.also"
    assert refused(root, "odd", "10", "14", method="zero_shot").value.where == "method"
    assert refused(root, "4", task=4).value.where == "upgrade.task"
    one = {"upgrade.stream": "", "upgrade.backbone": "tiny-clip"}
    assert "upgrade.stream" in str(refused(root, "one embedder", **one).value)
    assert {*(root / "runs/store").glob("commits/*/*")} == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"upgrade.stream": "odd"}, ["upgrade.task"]),
        ({"upgrade.task": 2}, ["upgrade.stream", "upgrade.backbone"]),
        ({"upgrade.task": 2, "upgrade.backbone": "vectors"}, ["upgrade.stream"]),
        ({"upgrade.task": 2, "upgrade.backbone": "tiny-clip", "upgrade.stream": "odd"}, ["tiny-clip", "odd"]),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings, words):
    with refuses(*words):
        resolve({"method": "head_linear", "stream": "old", **settings})


def test_a_stream_of_videos_has_no_second_set_of_features(root, manifest, small_stream):
    given = {"method": "clip4clip", "stream": manifest, "upgrade.task": 2, "upgrade.stream": "odd"}
    with refuses("odd") as caught:
        execute(resolve(given, small_stream.settings), RunPaths(root / "runs"))
    assert caught.value.where == "stream"
