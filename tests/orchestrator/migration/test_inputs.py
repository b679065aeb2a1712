"""Vectors of both embedders are read by id from files and streams; unusable ones are refused in one line."""

from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.migration.inputs import common_ids, read_queries, read_set
from tests.orchestrator.migration.pairs import make_pair, unit, write_sets, write_streams
from tests.refusing import refuses


def save(folder: Path, name: str = "a.npz", count: int = 60, **changed: np.ndarray) -> str:
    """Write vectors v0 to v59 of four numbers, except the changed ones."""
    arrays = {f"v{row}": np.eye(4)[row % 4] + 1 for row in range(count)}
    np.savez(folder / name, **{**arrays, **changed})
    return str(folder / name)


def test_vectors_are_averaged_and_unit(tmp_path):
    frames = np.array([[1.0, 0, 0, 0], [0, 3, 0, 0]])
    found = read_set(save(tmp_path, v7=frames.astype(np.float16)), tmp_path)
    assert found.vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found.vectors[found.places["v7"]], unit(np.array([1.0, 3, 0, 0])), atol=1e-6)


def test_one_array_has_the_numbers_of_its_rows_as_ids(tmp_path):
    arrays = np.random.default_rng(0).standard_normal((60, 3, 4))
    np.save(tmp_path / "a.npy", arrays)
    found = read_set(str(tmp_path / "a.npy"), tmp_path)
    assert list(found.places)[:2] == ["0", "1"]
    np.testing.assert_allclose(found.vectors, unit(arrays.mean(axis=1)), atol=1e-6)


@pytest.mark.parametrize("form", ["ids and rows", "ids and rows, reversed", "folder"])
def test_forms_of_a_set_give_the_same_vectors(tmp_path, form):
    vectors = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    expected = unit(vectors)
    ids = np.array([f"v{row}" for row in range(60)])
    if form == "folder":
        (tmp_path / "a").mkdir()
        for key, vector in zip(ids, vectors):
            np.save(tmp_path / "a" / f"{key}.npy", vector)
        found = read_set(str(tmp_path / "a"), tmp_path)
    else:
        step = -1 if "reversed" in form else 1
        np.savez(tmp_path / "a.npz", ids=ids[::step], features=vectors[::step])
        found = read_set(str(tmp_path / "a.npz"), tmp_path)
    for row, key in enumerate(ids):
        np.testing.assert_allclose(found.vectors[found.places[key]], expected[row], atol=1e-6)


def test_a_stream_has_its_items_and_captions(tmp_path):
    pair = make_pair(0, count=60, old=8, new=6)
    old, new = (read_set(name, tmp_path) for name in write_streams(tmp_path, pair))
    assert common_ids(old, new) == list(old.places)
    for found, items, texts in ((old, pair.old, pair.old_texts), (new, pair.new, pair.new_texts)):
        np.testing.assert_allclose(found.vectors[found.places["v7"]], items[7], atol=1e-6)
        assert found.captions["v7"] == ("caption 7",)
        np.testing.assert_allclose(found.text_vectors[found.texts["caption 7"]], texts[7], atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "values"),
    [
        ({"v9": np.ones(5)}, ["v9", 4, 5]),
        ({"v9": np.array([1, 2, np.nan, 0])}, ["v9", "NaN"]),
        ({"v9": np.array([1, 2, np.inf, 0])}, ["v9"]),
        ({"v9": np.zeros(4), "v3": np.zeros(4)}, ["v3", "zeros", 1]),
        ({"v9": np.array([[1.0, 0, 0, 0], [-1, 0, 0, 0]])}, ["v9", "zeros"]),
        ({"v9": np.array(["a"])}, ["v9"]),
        ({"v9": np.ones((2, 2, 4))}, ["v9"]),
        ({"v9": np.array([{}])}, ["pickled"]),
    ],
)
def test_a_vector_that_cannot_be_compared_is_named(tmp_path, changed, values):
    with refuses(*values, where="a.npz", remedy=True):
        read_set(save(tmp_path, **changed), tmp_path)


@pytest.mark.parametrize(
    "name", ["none.npz", "folder/none", "empty", "a.pkl", "text.npz", "one.npy", "nostream", "shapes-5", "bad.json"]
)
def test_something_else_than_vectors_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("a.pkl").write_bytes(b"\x80\x04N.")
    Path("text.npz").write_text("text")
    Path("bad.json").write_text("{}")
    np.save("one.npy", np.ones(4))
    with refuses(name):
        read_set(name, Path("runs"))
    assert not Path("runs").exists()


def test_too_few_common_ids_are_refused_with_an_example_of_both(tmp_path):
    other = {f"w{row}": np.ones(3) for row in range(60)}
    np.savez(tmp_path / "b.npz", **other)
    old, new = read_set(save(tmp_path), tmp_path), read_set(str(tmp_path / "b.npz"), tmp_path)
    with refuses(0, 50, "v0", "w0", where="b.npz", remedy=True):
        common_ids(old, new)
    few = read_set(save(tmp_path, "few.npz", count=49), tmp_path)
    with refuses(49, 50, where="few.npz", remedy=True):
        common_ids(old, few)


@pytest.mark.parametrize("texts", [(True, False), (False, True)])
def test_captions_on_one_side_only_are_refused(tmp_path, texts):
    names = write_streams(tmp_path, make_pair(0, count=60, old=8, new=8), texts)
    old, new = (read_set(name, tmp_path) for name in names)
    with refuses(*names, where=names[texts.index(True)], remedy=True):
        common_ids(old, new)


def test_queries_are_vectors_of_the_new_embedder_or_captions_of_both_streams(tmp_path):
    pair = make_pair(0, count=60, old=8, new=6)
    old, new = pair.sets()
    np.save(tmp_path / "q.npy", 3 * pair.new_texts[:9])
    found = read_queries(tmp_path / "q.npy", old, new)
    np.testing.assert_allclose(found.new, pair.new_texts[:9], atol=1e-6)
    assert found.old is None
    (tmp_path / "q.txt").write_text("caption 7\n\ncaption 7\ncaption 3\n")
    said = read_queries(tmp_path / "q.txt", old, new)
    np.testing.assert_array_equal(said.old, pair.old_texts[[7, 7, 3]])
    np.testing.assert_array_equal(said.new, pair.new_texts[[7, 7, 3]])


@pytest.mark.parametrize("case", ["width", "zeros", "unknown", "empty", "one", "absent"])
def test_unusable_queries_are_refused(tmp_path, case):
    old, new = make_pair(0, count=60, old=8, new=6).sets()
    values: list[object] = []
    file = tmp_path / ("q.txt" if case in ("unknown", "empty") else "q.npy")
    if case == "width":
        np.save(file, np.ones((9, 8)))
        values = [8, 6]
    elif case == "zeros":
        np.save(file, np.zeros((9, 6)))
    elif case == "one":
        np.save(file, np.ones(6))
    elif case != "absent":
        file.write_text("caption 7\na red square\n" if case == "unknown" else "\n")
        values = ["a red square"] if case == "unknown" else []
    with refuses(*values):
        read_queries(file, old, new)


def test_files_of_both_embedders_may_have_different_orders_and_widths(tmp_path):
    pair = make_pair(0, count=70, old=8, new=6)
    old, new = (read_set(name, tmp_path) for name in write_sets(tmp_path, pair))
    assert common_ids(old, new)[:2] == ["v0", "v1"]
    np.testing.assert_allclose(new.vectors[new.places["v0"]], pair.new[0], atol=1e-6)
