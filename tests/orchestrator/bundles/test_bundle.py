"""A bundle is one small file with reproducible bytes; a stranger's file is refused in one line."""

import io
import json
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.bundles import bundle as module
from ctvr.orchestrator.bundles.bundle import read_bundle, to_bytes
from ctvr.orchestrator.bundles.check import seal
from tests.orchestrator.bundles.small_bundle import copy_of, make_bundle
from tests.refusing import refuses


@pytest.fixture(scope="module")
def content() -> bytes:
    return to_bytes(make_bundle())


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(parts: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def about_with(content: bytes, **changes: object) -> bytes:
    return json.dumps(json.loads(members(content)["bundle.json"]) | changes).encode()


def test_equal_bundles_have_equal_bytes_and_numpy_reads_their_ranks(content, tmp_path):
    assert to_bytes(make_bundle()) == content
    file = tmp_path / "b.zip"
    file.write_bytes(content)
    read, made = read_bundle(file), make_bundle()
    assert read.about == made.about
    with np.load(file) as arrays:
        for name, ranks in made.ranks.items():
            assert np.array_equal(read.ranks[name], ranks)
            assert np.array_equal(arrays[name], ranks)
    assert to_bytes(read) == content


def test_large_ranks_keep_their_value_and_the_digest_does_not_depend_on_the_type(tmp_path):
    about, ranks = copy_of(make_bundle())
    ranks = {name: each.astype(np.uint32) for name, each in ranks.items()}
    assert seal(about, ranks).about["digest"] == make_bundle().about["digest"]
    ranks["all"][0, 0, -1, 0] = 1_000_000
    (tmp_path / "b.zip").write_bytes(to_bytes(seal(about, ranks)))
    assert read_bundle(tmp_path / "b.zip").ranks["all"].max() == 1_000_000


def test_a_bundle_of_more_than_a_megabyte_is_not_written(monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 1000)
    with refuses("0.001", where="bundle small", remedy=True):
        to_bytes(make_bundle())


def with_false_size(content: bytes, name: str, part: bytes, size: int) -> bytes:
    """Return a bundle whose member `name` is `part`, declared as its first `size` bytes with their checksum."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, original in members(content).items():
            archive.writestr(each, part if each == name else original)
        entry = archive.getinfo(name)
        entry.file_size, entry.CRC = size, zlib.crc32(part[:size])
    return out.getvalue()


def one_run(content: bytes, queries: int, tasks: int) -> bytes:
    """Return a bundle of one run with ranks of so many queries and tasks."""
    about = json.loads(members(content)["bundle.json"])
    names = [f"v{place}" for place in range(queries)]
    order = [min(place, tasks - 1) for place in range(queries)]
    text = about_with(content, runs=about["runs"][:1], queries=names, orders=[order])
    return zipped({"bundle.json": text, "all.npy": npy(np.zeros((1, 2, tasks, queries), np.uint8))})


OBJECT = np.array([print], dtype=object)
HUGE = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999, 2, 3, 36), }".ljust(127)
    + b"\n"
)
HOSTILE = {
    "not a zip file": lambda whole: b"PK\x03\x04 nothing",
    "cut": lambda whole: whole[: len(whole) // 2],
    "a path out of the folder": lambda whole: zipped({**members(whole), "../evil": b""}),
    "an unknown member": lambda whole: zipped({**members(whole), "video.mp4": b""}),
    "no ranks": lambda whole: zipped({"bundle.json": members(whole)["bundle.json"]}),
    "no text": lambda whole: zipped({"all.npy": members(whole)["all.npy"]}),
    "another compression": lambda whole: zipped(members(whole), zipfile.ZIP_BZIP2),
    "pickled objects": lambda whole: zipped({**members(whole), "all.npy": npy(OBJECT)}),
    "a shape without content": lambda whole: zipped({**members(whole), "all.npy": HUGE}),
    "floating-point ranks": lambda whole: zipped({**members(whole), "own.npy": npy(np.zeros((5, 2, 3, 36)))}),
    "fewer runs than arrays": lambda whole: zipped({**members(whole), "bundle.json": about_with(whole, runs=[])}),
    "a bomb": lambda whole: zipped({**members(whole), "all.npy": bytes(module.MAX_MEMBER_BYTES + 1)}),
    "more content than declared": lambda whole: with_false_size(
        whole, "own.npy", members(whole)["own.npy"] + b"x", len(members(whole)["own.npy"])
    ),
    "less content than declared": lambda whole: with_false_size(
        whole, "own.npy", members(whole)["own.npy"], len(members(whole)["own.npy"]) + 1
    ),
    "deep JSON": lambda whole: zipped({**members(whole), "bundle.json": b"[" * 100_000}),
    "another format": lambda whole: zipped({**members(whole), "bundle.json": about_with(whole, format=2)}),
    "queries that are numbers": lambda whole: zipped(
        {**members(whole), "bundle.json": about_with(whole, queries=list(range(36)))}
    ),
    "equal queries": lambda whole: zipped({**members(whole), "bundle.json": about_with(whole, queries=["a"] * 36)}),
    "a task that no query has": lambda whole: zipped(
        {**members(whole), "bundle.json": about_with(whole, orders=[[5] * 36])}
    ),
    "a list": lambda whole: zipped({**members(whole), "bundle.json": b"[]"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(content, name, tmp_path):
    file = tmp_path / "b.zip"
    file.write_bytes(HOSTILE[name](content))
    with refuses(where="b.zip", remedy=True):
        read_bundle(file)
    assert sorted(tmp_path.iterdir()) == [file]  # nothing was extracted


def test_a_member_is_inflated_only_as_far_as_its_declared_size(content, tmp_path):
    (tmp_path / "b.zip").write_bytes(with_false_size(content, "all.npy", bytes(100 * module.MIB), 10))
    tracemalloc.start()
    with refuses(where="b.zip", remedy=True):
        read_bundle(tmp_path / "b.zip")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * module.MIB


@pytest.mark.parametrize("limit", ["MOST_RANKS", "MOST_LAST"])
def test_more_ranks_than_memory_allows_are_refused(content, tmp_path, limit, monkeypatch):
    (tmp_path / "b.zip").write_bytes(one_run(content, queries=30, tasks=2 if limit == "MOST_RANKS" else 1))
    monkeypatch.setattr(module, limit, 30 if limit == "MOST_LAST" else 60)
    assert read_bundle(tmp_path / "b.zip").ranks["all"].shape[3] == 30
    monkeypatch.setattr(module, limit, 29 if limit == "MOST_LAST" else 59)
    with refuses("1 runs", "30 queries", where="b.zip", remedy=True):
        read_bundle(tmp_path / "b.zip")


def test_a_file_larger_than_a_bundle_may_be_is_not_read(tmp_path):
    file = tmp_path / "b.zip"
    file.write_bytes(bytes(module.LARGEST + 1))
    with refuses(where="b.zip", remedy=True):
        read_bundle(file)


def test_the_text_of_a_bundle_can_be_read_without_ctvr(content):
    about = json.loads(members(content)["bundle.json"])
    assert set(about) == {"format", "name", "queries", "orders", "runs", "table", "digest"}


def test_the_parquet_file_has_a_row_for_each_rank(tmp_path: Path):
    from ctvr.orchestrator.bundles.bundle import write_parquet

    parquet = pytest.importorskip("pyarrow.parquet")
    bundle = make_bundle()
    with refuses(where=tmp_path.name, remedy=True):
        write_parquet(bundle, tmp_path)
    count = write_parquet(bundle, tmp_path / "ranks.parquet")
    table = parquet.read_table(tmp_path / "ranks.parquet").to_pylist()
    assert len(table) == count == 2 * 5 * (12 + 24 + 36)
    last = [row for row in table if (row["run"], row["gallery"], row["learned"]) == (f"{1:032x}", "all", 3)]
    assert [row["query"] for row in last] == bundle.about["queries"]
    assert [row["better"] for row in last] == bundle.ranks["all"][1, 0, -1].tolist()
    assert {(row["row"], row["seed"], row["task"]) for row in last} == {("clip4clip", "0", task) for task in (1, 2, 3)}
    assert all(row["rank"] == 1 + row["better"] + row["equal"] / 2 for row in table)
