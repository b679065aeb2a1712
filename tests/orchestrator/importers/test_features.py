"""Features are matched to videos by name, also where a program has written `./` or the ending of a video."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
import torch
from pyarrow import parquet

from ctvr.orchestrator.data.arrays import read_features, write_arrays
from ctvr.orchestrator.importers.builder import items_of
from ctvr.orchestrator.importers.command import import_stream
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses

ROWS = (("a1", "train"), ("b.2", "test"), ("c3.mp4", "train"), ("d4", "test"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [f"{video},caption of {video},c,{split},{1 + n // 2}" for n, (video, split) in enumerate(ROWS)]
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["video,caption,category,split,task", *lines]))
    return file


def read(table: Path, keys: list[str]) -> list[float]:
    """Return the first number of each video's features, in the order of `ROWS`; key n has the number n."""
    features = table.parent / "features.npz"
    np.savez(features, **{key: np.full((2, 3), n, np.float32) for n, key in enumerate(keys)})
    out = table.parent / "out.json"
    manifest, _ = import_features(table, features, None, out, "out")
    items = {item["video"]: item for task in manifest["tasks"] for split in ("train", "test") for item in task[split]}
    return [float(np.load(out.parent / manifest["videos"] / items[video]["path"])[0, 0]) for video, _ in ROWS]


@pytest.mark.parametrize(
    "keys",
    [
        ["a1", "b.2", "c3.mp4", "d4"],
        ["./a1", "./b.2", "./c3", "./d4"],
        ["a1.mp4", "b.2.avi", "c3", "d4.webm"],
        ["./a1.mkv", "b.2", "c3.webm", "d4", "e5", "./e5"],
        ["features/a1", "features/b.2", "features/c3.mp4", "features/d4"],
        ["a1/c3d_features", "b.2/c3d_features", "c3/c3d_features", "d4.mp4/c3d_features"],
        ["train/a1", "test/b.2", "train/c3", "test/d4"],
        ["a1.clip", "b.2.clip", "c3.clip", "d4.clip"],
        ["a1.mp4", "b.2.mp4", "c3.mp4", "d4.mp4"],
    ],
)
def test_keys_are_taken_for_the_ids_that_they_mean(keys: list[str], table: Path) -> None:
    assert read(table, keys) == [0, 1, 2, 3]


def test_a_key_may_code_accents_in_another_way(table: Path) -> None:
    table.write_text(table.read_text().replace("a1", "\u00e91"))
    features = table.parent / "features.npz"
    np.savez(features, **dict.fromkeys(["e\u03011", "b.2", "c3.mp4", "d4"], np.ones((2, 3), np.float32)))
    import_features(table, features, None, table.parent / "out.json", "out")


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_an_array_without_names_is_in_the_order_of_the_table(form: str, tmp_path: Path) -> None:
    """This holds for any order of videos in tasks and splits. A further line of a video is another caption of it."""
    rows = [("d", "", "test", 2), ("c", "1", "train", 2), ("b", "", "test", 1), ("c", "3", "train", 2)]
    rows += [("d", "", "test", 2), ("a", "", "train", 1)]
    lines = [f"{v},caption {n},c,{s},{t},{at},{at and int(at) + 1}" for n, (v, at, s, t) in enumerate(rows)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["video,caption,category,split,task,start,end", *lines]))
    save = {"npy": np.save, "npz": np.savez}[form]  # numpy calls the one array arr_0
    save(tmp_path / f"features.{form}", np.arange(5, dtype=np.float32).reshape(5, 1))
    manifest, _ = import_features(table, tmp_path / f"features.{form}", None, tmp_path / "out.json", "out")
    items = [item for task in manifest["tasks"] for split in ("train", "test") for item in task[split]]
    found = {item["video"]: float(np.load(tmp_path / manifest["videos"] / item["path"])[0, 0]) for item in items}
    assert found == {"d": 0, "c@1-2": 1, "b": 2, "c@3-4": 3, "a": 4}


def test_an_exact_name_wins_over_one_that_is_like_it(table: Path) -> None:
    assert read(table, ["a1", "b.2", "c3.mp4", "./d4", "./a1", "a1.mp4"]) == [0, 1, 2, 3]


def test_an_array_of_names_next_to_one_of_features_gives_the_names(table: Path) -> None:
    features, out = table.parent / "features.npz", table.parent / "out.json"
    order = [2, 0, 3, 1]
    names = np.array([ROWS[n][0] for n in order])
    np.savez(features, embeddings=np.asarray(order, np.float32)[:, None], ids=names)
    manifest, _ = import_features(table, features, None, out, "out")
    items = [item for task in manifest["tasks"] for split in ("train", "test") for item in task[split]]
    found = {item["video"]: float(np.load(table.parent / manifest["videos"] / item["path"])[0, 0]) for item in items}
    assert found == {video: n for n, (video, _) in enumerate(ROWS)}
    np.savez(features, embeddings=np.ones((4, 1)), ids=names[[0, 0, 1, 2]])
    with refuses("c3.mp4", where="features.npz"):
        import_features(table, features, None, out, "out")


def test_vectors_of_zeros_are_counted(table: Path) -> None:
    features = table.parent / "features.npz"
    padded = np.array([[1.0, 2.0], [0.0, 0.0]])
    np.savez(features, **{video: padded if video == "d4" else padded[:1] for video, _ in ROWS})
    _, report = import_features(table, features, None, table.parent / "out.json", "out")
    assert "1 of 4 videos have a vector of zeros, the first is 'd4'" in report
    texts = table.parent / "texts.npy"
    np.save(texts, np.array([[1.0, 2], [0, 0], [1, 1], [0, 0]]))
    _, report = import_features(table, features, texts, table.parent / "out.json", "out")
    assert "2 of 4 captions have a vector of zeros, the first is 'caption of b.2'" in report


def first_numbers(table: Path, features: Path) -> list[float]:
    """Return the first number of each video's features, in the order of the table."""
    out = table.parent / "out.json"
    manifest, _ = import_features(table, features, None, out, "out")
    items = {item["video"]: item for task in manifest["tasks"] for split in ("train", "test") for item in task[split]}
    names = [line.partition(",")[0] for line in table.read_text().splitlines()[1:]]
    return [float(np.load(out.parent / manifest["videos"] / items[name]["path"])[0, 0]) for name in names]


ROW = np.arange(12, dtype=np.float32).reshape(4, 3)
IDS = [video for video, _ in ROWS]


@pytest.mark.parametrize("ids", ["text", "bytes", "numbers", None])
@pytest.mark.parametrize("form", ["h5", "npz"])
def test_one_array_finds_its_rows_by_the_ids_next_to_it_or_in_the_order_of_the_table(
    form: str, ids: str | None, table: Path
) -> None:
    names, rows = IDS, ROW
    if ids:
        names, rows = names[::-1], rows[::-1]
    if ids == "numbers":
        text = table.read_text()
        for n, name in enumerate(IDS):
            text = text.replace(f"\n{name},", f"\nvideo{n},")
        table.write_text(text)
    listed = {
        "text": np.array(names),
        "bytes": np.array([name.encode() for name in names]),
        "numbers": np.array([3, 2, 1, 0]),
    }
    arrays = {"features": rows} | ({"video_ids": listed[ids]} if ids else {})
    file = table.parent / f"features.{form}"
    if form == "npz":
        np.savez(file, **arrays)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(file, "w") as opened:
            for name, array in arrays.items():
                text = array.dtype.kind == "U"
                kind = h5py.string_dtype() if text else array.dtype
                opened.create_dataset(name, data=array.astype(object) if text else array, dtype=kind)
    assert first_numbers(table, file) == [0, 3, 6, 9]


@pytest.mark.parametrize("form", ["npz", "pt", "pkl", "h5"])
def test_the_features_are_chosen_among_several_arrays_of_a_video(form: str, table: Path) -> None:
    arrays = {f"{video}/seconds": np.arange(2.0) for video in IDS}
    arrays |= {f"{video}/features": np.full((2, 3), n, np.float32) for n, video in enumerate(IDS)}
    file = table.parent / f"features.{form}"
    write_one(file, arrays) if form != "npz" else np.savez(file, **arrays)
    assert first_numbers(table, file) == [0, 1, 2, 3]


@pytest.mark.parametrize("form", ["npz", "pt", "pkl", "h5"])
def test_rows_without_ids_are_one_line(form: str, table: Path) -> None:
    file = table.parent / f"features.{form}"
    if form == "npz":
        np.savez(file, ids=np.array(IDS[:3]), features=ROW)
    elif form == "pt":
        torch.save({"ids": IDS[:3], "features": torch.from_numpy(ROW)}, file)
    elif form == "pkl":
        file.write_bytes(pickle.dumps({"ids": IDS[:3], "features": ROW}))
    else:
        with pytest.importorskip("h5py").File(file, "w") as opened:
            opened["ids"], opened["features"] = IDS[:3], ROW
    with refuses("3", "4", where=str(file), remedy=True):
        import_stream("features", {"table": str(table), "features": str(file)}, None, table.parent / "runs", "mine")
    assert not (table.parent / "runs").exists()


def test_hdf5_without_its_package_is_one_line(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    (table.parent / "f.h5").write_bytes(b"")
    with refuses("h5py", "pip install h5py"):
        import_stream("features", {"table": str(table), "features": str(table.parent / "f.h5")}, None, table.parent)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
OTHERS = [["./a1", "a1.mp4"], ["a1.mp4", "a1.avi"], ["x/a1"], ["a1.npy"], ["A1"]]
REFUSED = [
    *(("npz", dict.fromkeys(["b.2", "c3.mp4", "d4", *keys], ROW), "1 4 'a1'") for keys in OTHERS),
    ("npz", {"features": ROW[:3]}, "3 4"),
    ("npz", {"z9": ROW}, "4 'a1' 1 'z9'"),
    ("npz", {"features": ROW, "frames": np.arange(4)}, "4 'a1' 2"),
    ("npz", {"features": ROW, "ids": np.arange(4)}, "4 'a1'"),
    ("npz", POINTER, ""),
    ("npy", POINTER, ""),
    ("h5", POINTER, ""),
    ("parquet", POINTER, ""),
    ("npy", np.array({"a1": ROW}), "np.savez(FILE"),
]


@pytest.mark.parametrize(("ending", "content", "values"), REFUSED)
def test_features_that_may_be_of_other_videos_are_refused(ending: str, content: Any, values: str, table: Path) -> None:
    file = table.parent / f"features.{ending}"
    if ending == "h5":
        pytest.importorskip("h5py")
    if content is POINTER:
        file.write_text(content)
    elif ending == "npz":
        np.savez(file, **content)
    else:
        np.save(file, content)
    with refuses(file, *values.split()):
        import_features(table, file, None, table.parent / "out.json", "out")


@pytest.mark.parametrize("form", ["pt", "pth", "h5", "pkl", "NPY"])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_folder_has_a_file_of_any_form_for_each_video(form: str, is_named: bool, table: Path) -> None:
    """Files of another form next to them are not read."""
    folder = table.parent / "features"
    (folder / "train").mkdir(parents=True)
    for n, video in enumerate(IDS):
        arrays = {"features": np.full((2, 3), n, np.float16)} | ({"seconds": np.arange(2.0)} if is_named else {})
        write_one(folder / "train" / f"{video}.{form}", arrays)
    (folder / "train" / "notes.txt").write_text("")
    if form != "NPY":
        assert stored(table, folder) == {video: np.full((2, 3), n, np.float16).tobytes() for n, video in enumerate(IDS)}
        (folder / "labels.parquet").write_text("not read")
    assert first_numbers(table, folder) == [0, 1, 2, 3]


def write_one(file: Path, arrays: dict[str, np.ndarray]) -> None:
    if file.suffix in (".pt", ".pth"):
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, file)
    elif file.suffix == ".h5":
        pytest.importorskip("h5py")
        write_arrays(file, arrays.items())
    elif file.suffix == ".pkl":
        file.write_bytes(pickle.dumps(arrays))
    else:
        with file.open("wb") as opened:
            np.save(opened, arrays["features"])


def stored(table: Path, features: Path) -> dict[str, bytes]:
    """Return the bytes of the arrays of each video after an import."""
    manifest, _ = import_features(table, features, None, table.parent / "out.json", "out")
    place = table.parent / manifest["videos"]
    return {item["video"]: np.load(place / item["path"]).tobytes() for item in items_of(manifest)}


@pytest.mark.parametrize("kind", ["one", "named features", "tokens", "npy", "split"])
def test_a_folder_has_a_file_for_each_video(kind: str, table: Path) -> None:
    folder = table.parent / "features"
    for n, (video, split) in enumerate(ROWS):
        file = folder / (split if kind == "split" else "") / f"{video}.np{'y' if kind == 'npy' else 'z'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        array = np.full((2, 3), n, np.float32)
        if kind == "npy":
            np.save(file, array)
        else:
            named = {
                "named features": {"seconds": np.arange(2), "features": array},
                "tokens": {"pooler_output": array[0] + 9, "last_hidden_state": array},
            }
            np.savez(file, **named.get(kind, {"c3d": array}))
    (folder / "._a1.npz").write_bytes(b"of a Mac")
    assert first_numbers(table, folder) == [0, 1, 2, 3]
    np.savez(folder / "a1.npz", x=ROW, y=ROW)
    if kind == "one":
        with refuses("a1.npz", "2", "x", "y"):
            import_features(table, folder, None, table.parent / "out.json", "out")


def test_a_folder_of_shards_is_one_file(table: Path) -> None:
    folder = table.parent / "shards"
    for n, names in enumerate((IDS[:2], IDS[2:])):
        arrays = [(name, np.full((2, 3), 2 * n + place, np.float32)) for place, name in enumerate(names)]
        write_arrays(folder / f"{n:05d}.tar", arrays)
    assert first_numbers(table, folder) == [0, 1, 2, 3]
    write_arrays(folder / "00002.tar", [("a1", ROW)])
    with refuses("'a1'", where="shards"):
        import_features(table, folder, None, table.parent / "out.json", "out")
    np.save(folder / "b9.npy", ROW)
    with refuses(where="shards", remedy=True):
        import_features(table, folder, None, table.parent / "out.json", "out")


def test_features_imported_again_are_another_stream_and_the_import_says_which_it_replaces(table: Path) -> None:
    files = {"table": str(table), "features": str(table.parent / "features.npz")}

    def imported(number: float) -> tuple[str, str]:
        np.savez(files["features"], **{key: np.full((2, 3), number, np.float32) for key, _ in ROWS})
        report = import_stream("features", files, None, table.parent, "mine")
        return report, load_stream("mine", table.parent).digest

    (first, old), (again, same), (other, new) = imported(1), imported(1), imported(2)
    assert "replaces" not in first
    assert old == same != new
    for report in (again, other):
        assert "replaces the stream mine of 20" in report
        assert f"(digest {old})" in report
    assert f"digest {new}" in other


@pytest.mark.parametrize("form", ["npz", "npy", "h5", "pt", "pkl", "tar", "parquet"])
def test_features_in_half_precision_stay_so_on_the_disk_and_are_equal_when_read(form: str, table: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(4, 2, 64)).astype(np.float16)
    arrays, file, out = dict(zip(IDS, rows)), table.parent / f"features.{form}", table.parent / "out.json"
    if form == "h5":
        pytest.importorskip("h5py")
    if form == "pkl":
        file.write_bytes(pickle.dumps(arrays))
    elif form == "npy":
        np.save(file, rows)
    elif form == "parquet":  # as other programs write it; `write_arrays` writes float32
        cells = arrow.array([row.tolist() for row in rows], arrow.list_(arrow.list_(arrow.float16())))
        parquet.write_table(arrow.table({"name": IDS, "features": cells}), file)
    else:
        write_arrays(file, arrays.items())
    import_features(table, file, None, out, "out")
    items = [item for task in load_stream(out, table.parent).tasks for item in (*task.train, *task.test)]
    for item in items:
        assert np.load(item.path).dtype == np.float16
        found = read_features(item.path)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, arrays[item.video].astype(np.float32))


BAD: dict[str, Any] = {
    "a video without features": dict(zip(IDS[1:], ROW[:, None])),
    "NaN": dict(zip(IDS, [*ROW[:3], np.array([1, np.nan, 1])])),
    "infinity": dict(zip(IDS, [*ROW[:3], np.array([1, np.inf, 1])])),
    "two widths": dict(zip(IDS, [*ROW[:3], ROW[3, :2]])),
    "no numbers": dict(zip(IDS, [*ROW[:3], ROW[3, :0]])),
    "an image": dict(zip(IDS, [*ROW[:3], ROW[None]])),
}


FORMS = ["pt", "pkl", "parquet", "tar", "h5", "folder"]


@pytest.mark.parametrize(("form", "what"), [(f, w) for f in FORMS for w in BAD if (f, w) != ("parquet", "an image")])
def test_bad_features_of_every_form_leave_nothing(form: str, what: str, table: Path) -> None:
    root, file = table.parent / "runs", table.parent / ("features.npy" if form == "folder" else f"features.{form}")
    if form == "h5":
        pytest.importorskip("h5py")
    if form == "pkl":
        file.write_bytes(pickle.dumps(BAD[what]))
    elif form == "parquet":
        cells = arrow.array([np.atleast_2d(array).tolist() for array in BAD[what].values()])
        parquet.write_table(arrow.table({"name": list(BAD[what]), "features": cells}), file)
    else:
        file = write_arrays(file, BAD[what].items())
    with refuses(file):
        import_stream("features", {"table": str(table), "features": str(file)}, None, root, "mine")
    assert not root.exists()


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("what", [*BAD, "a caption without features", "damaged"])
def test_a_refused_import_leaves_nothing_and_an_earlier_stream_whole(what: str, is_again: bool, table: Path) -> None:
    root, file, texts = table.parent / "runs", table.parent / "features.npz", table.parent / "texts.npz"
    words = {"table": str(table), "features": str(file)}
    np.savez(file, **dict(zip(IDS, ROW)))
    if is_again:
        import_stream("features", words, None, root, "mine")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    if what in BAD:
        np.savez(file, **BAD[what])
    elif what == "damaged":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        np.savez(texts, **{"caption of a1": ROW[0]})
        words["text"] = str(texts)
    with refuses(texts if "text" in words else file):
        import_stream("features", words, None, root, "mine")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    if not is_again:
        assert not root.exists()


@pytest.mark.parametrize("cell", ["video", "caption"])  # the empty cell, or where the file ends
@pytest.mark.parametrize("form", ["", "npz", "tar", "parquet", "h5", "pkl", "pt", "code"])
def test_a_file_that_is_cut_short_or_names_code_leaves_nothing(form: str, cell: str, table: Path) -> None:
    """Without a form, the table lacks an ID or a caption."""
    root, canary = table.parent / "runs", table.parent / "canary"
    file = table.parent / f"features.{'pkl' if form == 'code' else form or 'npz'}"
    arrays = dict(zip(IDS, np.random.default_rng(0).normal(size=(4, 2, 300)).astype(np.float32)))
    if form == "h5":
        pytest.importorskip("h5py")
    if form == "code":
        file.write_bytes(b"\x80\x02}X\x02\x00\x00\x00a1cos\nsystem\nX" + _text(f"touch {canary}") + b"\x85Rs.")
    elif form == "pkl":
        file.write_bytes(pickle.dumps(arrays))
    else:
        write_arrays(file, arrays.items())
    if form == "":
        lines = table.read_text().replace("a1,caption of a1", ",one" if cell == "video" else "a1,")
        table.write_text(lines)
    elif form != "code":
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // (2 if cell == "video" else 3)])
    with refuses(file if form else table):
        import_stream("features", {"table": str(table), "features": str(file)}, None, root, "mine")
    assert not root.exists()
    assert not canary.exists()


def _text(text: str) -> bytes:
    return len(text).to_bytes(4, "little") + text.encode()


def test_captions_are_matched_by_the_column_caption_id(table: Path, tmp_path: Path) -> None:
    lines = table.read_text().splitlines()
    table.write_text("\n".join([f"{lines[0]},caption_id", *(f"{line},{n}" for n, line in enumerate(lines[1:], 7))]))
    features, texts, out = tmp_path / "features.npz", tmp_path / "texts", tmp_path / "streams/ids.json"
    np.savez(features, **{video: np.ones((2, 3), np.float32) for video, _ in ROWS})
    texts.mkdir()
    for n, _ in enumerate(ROWS):
        np.savez(texts / f"qid{7 + n}.npz", last_hidden_state=np.full((n + 1, 5), n, np.float32), pooled=np.ones(4))
    out.parent.mkdir()
    manifest, report = import_features(table, features, texts, out, "ids")
    assert "1 to 4 vectors of 5 numbers" in report
    stored = np.load(out.parent / manifest["videos"] / "texts.npz")
    assert stored["starts"].tolist() == [0, 1, 3, 6, 10]
    assert stored["texts"].tolist() == [f"caption of {video}" for video, _ in ROWS]
    assert stored["features"][[0, 1, 3, 6], 0].tolist() == [0, 1, 2, 3]
    (texts / "qid9.npz").unlink()
    with refuses("line 4", "9", where="texts", remedy=True):
        import_features(table, features, texts, out, "ids")
