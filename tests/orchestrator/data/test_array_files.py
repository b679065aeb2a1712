"""Array files with wrong sizes: each gives one line before memory is allocated, and no other file is read."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from ctvr.orchestrator.data import array_files
from ctvr.orchestrator.data.array_files import load_npy
from ctvr.orchestrator.data.arrays import read_arrays, read_features, write_arrays
from ctvr.orchestrator.data.images import _read as read_images
from ctvr.orchestrator.errors import ConfigError, VideoError

pytestmark = pytest.mark.wording  # only words name the kind of damage

ONE = np.arange(18, dtype=np.float32).reshape(3, 6)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00v\x00" + text


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        read_arrays(path)
    assert str(path) in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


DAMAGED = {
    "empty": b"",
    "cut within the mark": b"\x93NUM",
    "cut within the numbers": npy(ONE)[:-5],
    "text": b"hello",
    "a zip": b"PK\x03\x04" + bytes(50),
    "a pickle": b"\x80\x04}.",
    "objects": npy(np.array([{}], object)),
    "more rows than bytes": header(f"({1 << 40}, 6)"),
    "an overflow": header(f"({1 << 62}, {1 << 62})"),
    "a negative length": header("(-1, 6)") + bytes(72),
    "no shape": header("'x'"),
    "parentheses": b"\x93NUMPY\x01\x00" + (8000).to_bytes(2, "little") + b"(" * 8000,
    "a structure": npy(np.zeros(3, [("a", "f4")])),
    "format 9": b"\x93NUMPY\x09\x00" + bytes(100),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_npy_is_one_line_wherever_it_is_read(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "v0.npy"
    file.write_bytes(DAMAGED[kind])
    for path in (tmp_path, file):
        with pytest.raises(ConfigError, match="v0.npy: [^\n]*$"):
            read_arrays(path)
    for reader in (read_features, read_images, load_npy):
        with pytest.raises(VideoError, match="v0.npy: [^\n]*$"):
            reader(str(file))


@pytest.mark.parametrize("name", ["v0.npy", "a.npz", "a.h5", "a.parquet", "a.tar", "a.pt"])
def test_a_file_that_is_not_regular_is_refused_immediately(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    assert "FIFO" in refused(tmp_path / name)
    (tmp_path / "zero").mkdir()
    endless = tmp_path / "zero" / name
    endless.symlink_to("/dev/zero")
    assert "device" in refused(endless)
    if name == "v0.npy":
        for place in (tmp_path, endless.parent):
            with pytest.raises(ConfigError, match="FIFO|device"):
                read_arrays(place)
        with pytest.raises(VideoError, match="FIFO"):
            read_features(str(tmp_path / name))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "<i8", "u1"])
def test_npy_is_read_as_numpy_reads_it(dtype: str, order: str, tmp_path: Path) -> None:
    array = np.asarray(ONE, dtype, order=order)
    np.save(tmp_path / "v0.npy", array)
    for mapped in (False, True):
        np.testing.assert_array_equal(load_npy(tmp_path / "v0.npy", mapped), array)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "SPARE", 1 << 20)


@pytest.mark.usefixtures("small")
def test_a_bomb_in_npz_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("v0.npy", "w") as entry:
        entry.write(header(f"({1 << 18}, 12)"))
        for _ in range(12):
            entry.write(bytes(1 << 20))
    assert "declares 12 MB" in refused(tmp_path / "a.npz")


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile, while the test writes such a file
def test_an_npz_holds_each_name_once_and_arrays_alone(tmp_path: Path) -> None:
    for entries in ([("a.npy", npy(ONE)), ("a.npy", npy(ONE))], [("a.txt", b"x")], [("a.npy", header("(99, 6)"))]):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            for name, content in entries:
                archive.writestr(name, content)
        refused(tmp_path / "a.npz")


def table(path: Path, **columns: object) -> Path:
    parquet.write_table(arrow.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"name": ["v0", "v0"], "features": [[1.0], [2.0]]}, "occurs in 2 lines"),
        ({"name": ["v0", "v0"], "row": [0, 0], "features": [[1.0], [2.0]]}, "the value 0 in the column row"),
        ({"name": ["v0", "v0"], "row": [0, None], "features": [[1.0], [2.0]]}, "row is missing"),
        ({"name": ["v0", None], "features": [[1.0], [2.0]]}, "name is missing"),
        ({"name": ["v0", "v1"], "features": [[1.0], None]}, "features are missing"),
        ({"name": ["v0"], "features": [[1.0, None]]}, "features are missing"),
        ({"name": ["v0"], "features": ["x"]}, "not lists of numbers"),
        ({"name": ["v0"], "features": [["x"]]}, "not lists of numbers"),
        ({"name": ["v0"], "row": ["first"], "features": [[1.0]]}, "not an integer type"),
        ({"name": [b"v0"], "features": [[1.0]]}, "not text"),
        ({"name": ["v0", "v0"], "row": [0, 1], "features": [[1.0], [1.0, 2.0]]}, "different lengths"),
        ({"name": ["v0"], "features": [[[1.0], [1.0, 2.0]]]}, "same shape"),
        ({"x": [1]}, "column 'name' is missing"),
    ],
)
def test_parquet_that_would_lose_or_invent_vectors_is_refused(
    columns: dict[str, object], said: str, tmp_path: Path
) -> None:
    assert said in refused(table(tmp_path / "a.parquet", **columns))


def test_parquet_of_rows_of_whole_arrays_and_of_vectors_is_read(tmp_path: Path) -> None:
    rows = {"name": ["b", "a", "a"], "row": [0, 1, 0], "features": [[5.0, 6.0], [3.0, 4.0], [1.0, 2.0]]}
    wanted = {"a": np.array([[1, 2], [3, 4]]), "b": np.array([[5, 6]])}
    for number, kind in enumerate((arrow.float16(), arrow.float32(), arrow.float64(), arrow.int64())):
        values = [[int(n) for n in row] if number == 3 else row for row in rows["features"]]
        typed = rows | {"features": arrow.array(values, arrow.list_(kind))}
        found = read_arrays(table(tmp_path / "a.parquet", **typed))
        assert isinstance(found, dict)
        assert found.keys() == wanted.keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, wanted[name])
    nested = read_arrays(table(tmp_path / "b.parquet", name=["a"], features=[[[1.0, 2.0], [3.0, 4.0]]]))
    assert isinstance(nested, dict)
    np.testing.assert_array_equal(nested["a"], wanted["a"])
    alone = read_arrays(table(tmp_path / "c.parquet", name=[7, 8], features=[[1.0, 2.0], [3.0, 4.0]]))
    assert isinstance(alone, dict)
    np.testing.assert_array_equal(alone["8"], [3, 4])


@pytest.mark.usefixtures("small")
def test_repeated_numbers_in_parquet_are_counted_before_they_are_read(tmp_path: Path) -> None:
    values = arrow.array(np.zeros(1 << 20, "f4"))
    lists = arrow.ListArray.from_arrays(arrow.array([0, len(values)], arrow.int32()), values)
    parquet.write_table(arrow.table({"name": ["v0"], "features": lists}), tmp_path / "a.parquet", compression="zstd")
    assert "declares 8 MB" in refused(tmp_path / "a.parquet")


def shard(path: Path, *entries: tuple[str, bytes, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content, kind in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            entry.size = len(content) if kind == tarfile.REGTYPE else 0
            entry.linkname = "" if kind == tarfile.REGTYPE else content.decode()
            archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "entries",
    [
        [("v0.npy", b"/etc/passwd", tarfile.SYMTYPE)],
        [("v0.npy", b"v0.npy", tarfile.LNKTYPE)],
        [("v0.npy", b"", tarfile.FIFOTYPE)],
        [("v0.npy", npy(ONE), tarfile.REGTYPE)] * 2,
        [("v0.npy", npy(ONE)[:-9], tarfile.REGTYPE)],
        [("v0.npy", header(f"({1 << 28}, 6)"), tarfile.REGTYPE)],
        [("0.npy", npy(ONE), tarfile.REGTYPE), ("0.name.txt", b"\xff\xfe", tarfile.REGTYPE)],
        [("v0.mp4", b"x", tarfile.REGTYPE)],
    ],
)
def test_a_shard_holds_whole_arrays_each_once(entries: list[tuple[str, bytes, bytes]], tmp_path: Path) -> None:
    refused(shard(tmp_path / "a.tar", *entries))


def test_shard_keys_keep_dots_and_skip_macos_files(tmp_path: Path) -> None:
    names = ["a.1.npy", "a.2.npy", "b.mp4.npy", "./c.npy", "d/e.npy", "000.npy"]
    entries = [(name, npy(ONE + n), tarfile.REGTYPE) for n, name in enumerate(names)]
    more = [
        ("000.name.txt", b"f.7", tarfile.REGTYPE),
        ("._a.1.npy", b"x", tarfile.REGTYPE),
        ("b.txt", b"x", tarfile.REGTYPE),
    ]
    found = read_arrays(shard(tmp_path / "a.tar", *entries, *more))
    assert isinstance(found, dict)
    assert {name: array[0, 0] for name, array in found.items()} == {
        "a.1": 0,
        "a.2": 1,
        "b.mp4": 2,
        "./c": 3,
        "d/e": 4,
        "f.7": 5,
    }
    (tmp_path / "files").mkdir()
    np.save(tmp_path / "files/a.1.npy", ONE)
    (tmp_path / "files/._a.1.npy").write_bytes(b"x")
    assert list(read_arrays(tmp_path / "files")) == ["a.1"]


def test_a_compressed_shard_names_the_program_that_unpacks_it(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz"):
        pass
    assert "it is compressed; decompress it with gunzip" in refused(tmp_path / "a.tar")


@pytest.mark.parametrize("trick", ["external", "virtual", "fill", "fifo", "gzip"])
def test_hdf5_reads_no_other_file_and_no_more_than_it_holds(trick: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(b"TOPSECRET-KEY-0123456789")
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = ONE
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = ONE
        if trick == "virtual":
            layout = h5py.VirtualLayout((3, 6), "f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (3, 6))
            file.create_virtual_dataset("v0", layout)
        elif trick == "fill":
            file.create_dataset("v0", shape=(1 << 30,), dtype="f4", fillvalue=1.0, chunks=(1 << 16,))
        elif trick == "gzip":
            file.create_dataset("v0", shape=(1 << 28, 4), dtype="f4", compression="gzip", chunks=(1 << 14, 4))
        else:
            place = tmp_path / ("pipe" if trick == "fifo" else "secret")
            file.create_dataset("v0", shape=(3, 6), dtype="u1", external=[(str(place), 0, 18)])
    assert ("declares" if trick in ("fill", "gzip") else "stored in another file") in refused(tmp_path / "a.h5")


def test_hdf5_of_text_links_and_groups_is_read_for_its_numbers(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = ONE
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/v0"], file["names"], file["nothing"] = ONE, ["a", "b"], h5py.Empty("f4")
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        file["group/itself"], file["same"] = file["/"], file["group/v0"]
        file["soft"] = h5py.SoftLink("/link")
    found = read_arrays(tmp_path / "a.h5")
    assert isinstance(found, dict)
    assert sorted(found) == ["group/v0", "same"]
    np.testing.assert_array_equal(found["group/v0"], ONE)


@pytest.mark.parametrize("form", ["npz", "parquet", "tar", "h5"])
def test_written_arrays_are_read_back(form: str, tmp_path: Path) -> None:
    if form == "h5":
        pytest.importorskip("h5py")
    written = {"a": ONE, "b.c": ONE + 1}
    found = read_arrays(write_arrays(tmp_path / f"a.{form}", written.items()))
    assert isinstance(found, dict)
    assert found.keys() == written.keys()
    for name, array in written.items():
        np.testing.assert_array_equal(found[name], array)
