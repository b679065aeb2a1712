"""Clusters of captions are those of k-means, equal on every machine, and made of the training videos."""

from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.importers import task_clusters
from ctvr.orchestrator.importers.command import import_stream
from ctvr.orchestrator.importers.task_clusters import _directions, _k_means, _squares, cluster_tasks
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses

GROUPS, EACH, D = 4, 30, 16
Row = tuple[dict[str, str], list[str], object]


def made(seed: int = 0, noise: float = 0.1) -> tuple[list[Row], dict[str, np.ndarray], list[int]]:
    """Return rows of videos, two captions each, vectors around a center of each group, and the group of each row."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(GROUPS, D))
    groups = rng.permutation(np.repeat(np.arange(GROUPS), EACH)).tolist()
    rows: list[Row] = []
    vectors = {}
    for n, group in enumerate(groups):
        captions = [f"{n} a", f"{n} b"]
        split = "test" if n % 3 == 2 else "train"
        vectors |= {c: (centers[group] + noise * rng.normal(size=(1 + n % 2, D))).astype(np.float32) for c in captions}
        rows += [({"split": split}, [caption], n) for caption in captions]
    return rows, vectors, [group for group in groups for _ in range(2)]


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_the_groups_in_the_order_of_the_table(seed: int) -> None:
    rows, vectors, groups = made(seed)
    names, ordered = cluster_tasks(Path("t.csv"), rows, GROUPS, vectors)
    first = {group: str(at + 1) for at, group in enumerate(dict.fromkeys(groups))}
    assert names == [first[group] for group in groups]
    assert ordered == ["1", "2", "3", "4"]


def test_lengths_and_the_order_of_numbers_change_nothing() -> None:
    """Other orders of the numbers are other orders of additions, which change clusters if a sum is rounded."""
    rows, vectors, _ = made(noise=2.0)
    expected = cluster_tasks(Path("t.csv"), rows, 7, vectors)
    order = np.random.default_rng(1).permutation(D)
    for changed in ({c: v[:, order] for c, v in vectors.items()}, {c: v * 4 for c, v in vectors.items()}):
        assert cluster_tasks(Path("t.csv"), rows, 7, changed) == expected


def test_every_number_is_whole_and_exact() -> None:
    points = _directions(np.random.default_rng(0).normal(size=(50, 4096)) * np.geomspace(1e-30, 1e30, 50)[:, None])
    exact = points.astype(np.int64)
    np.testing.assert_array_equal(points, exact)
    squares = ((exact[:, None] - exact[None]) ** 2).sum(axis=-1)
    np.testing.assert_array_equal(_squares(points, points), squares)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 2.0**18, rtol=1e-3)


def test_videos_of_the_test_split_move_no_center() -> None:
    rows, vectors, _ = made(noise=1.0)
    names, _ = cluster_tasks(Path("t.csv"), rows, 5, vectors)
    is_training = [cells["split"] == "train" for cells, _, _ in rows]
    changed = {c: v if rows[at][0]["split"] == "train" else -v for at, (c, v) in enumerate(vectors.items())}
    again, _ = cluster_tasks(Path("t.csv"), rows, 5, changed)

    def together(found: list[str]) -> np.ndarray:
        kept = np.array([name for name, training in zip(found, is_training) if training])
        return kept[:, None] == kept

    np.testing.assert_array_equal(together(names), together(again))
    assert names != again


def test_each_point_is_in_the_nearest_cluster_and_none_is_empty() -> None:
    points = _directions(np.random.default_rng(0).normal(size=(200, 8)))
    labels, centers = _k_means(points, 9)
    assert set(labels) == set(range(9))
    np.testing.assert_array_equal(labels, _squares(points, centers).argmin(axis=1))
    for k in range(9):
        np.testing.assert_array_equal(centers[k], np.rint(points[labels == k].mean(axis=0)))


def test_an_empty_cluster_gets_the_farthest_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = _directions(np.array([[1, 0.0], [1, 0.01], [1, 0.02], [0, 1.0]]))
    monkeypatch.setattr(task_clusters, "_start", lambda *_: points[[0, 0]])
    labels, _ = _k_means(points, 2)
    assert labels[3] not in labels[:3]
    assert len(set(labels[:3])) == 1


def test_more_clusters_than_different_vectors_are_refused() -> None:
    rows, vectors, _ = made()
    few = {
        caption: np.eye(3, D)[[n // 2 % 3]] for n, caption in enumerate(vectors)
    }  # third videos are of the test split
    with refuses("2", where="t.csv: tasks=clusters:3", remedy=True):
        cluster_tasks(Path("t.csv"), rows, 3, few)


def test_an_import_divides_a_table_by_clusters_and_prints_their_sizes(tmp_path: Path) -> None:
    rows, vectors, groups = made()
    table, root = tmp_path / "t.csv", tmp_path / "runs"
    lines = [f"v{key},{captions[0]},{cells['split']}" for cells, captions, key in rows]
    table.write_text("\n".join(["video,caption,split", *lines]))
    np.savez(tmp_path / "texts.npz", **vectors)  # type: ignore[arg-type]
    np.savez(tmp_path / "f.npz", **{f"v{n}": np.ones((1, 3)) for n in range(len(rows) // 2)})  # type: ignore[arg-type]
    words = {"table": str(table), "features": str(tmp_path / "f.npz"), "tasks": "clusters:4"}
    with refuses("clusters:4", where="tasks=clusters:4", remedy=True):
        import_stream("features", words, None, root, "mine")
    assert not root.exists()
    report = import_stream("features", words | {"text": str(tmp_path / "texts.npz")}, None, root, "mine")
    tasks = load_stream("mine", root).tasks
    found = [{groups[2 * int(item.video[1:])] for item in (*task.train, *task.test)} for task in tasks]
    assert [len(each) for each in found] == [1] * 4
    assert f"{', '.join(str(len(task.train)) for task in tasks)}." in report
