"""Shards of data sets: Arrow as `datasets.save_to_disk` writes it, and WebDataset's .tar."""

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.data.arrays import read_arrays, write_arrays
from ctvr.orchestrator.importers import shard_files
from ctvr.orchestrator.importers.arrow_size import declared_bytes
from ctvr.orchestrator.importers.hf_dataset import import_dataset
from tests.refusing import refuses


def packed(**members: str | bytes) -> bytes:
    """Return a shard; `__` in a name stands for a dot, `_of_` for a slash. A member without text is a link."""
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w") as archive:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(name.replace("_of_", "/").replace("__", "."))
            entry.size = len(data)
            if not data:
                entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def tar(path: Path, **members: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(**members))
    return path


def found_in(folder: Path, out: Path | None = None) -> dict[str, list[tuple[object, ...]]]:
    (task,) = import_dataset(folder, out)[0]["tasks"]
    return {
        split: [(item["video"], item["captions"], item["segment"]) for item in task[split]]
        for split in ("train", "test")
    }


def test_samples_of_tars_are_videos_with_their_text_or_their_json(tmp_path):
    """video2dataset writes them, with a table of each shard's metadata in the same folder."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cells = {"captions": ["a bird", "it sings"], "start": "0:01", "end": 2.5, "url": "x"}
    folder = tmp_path / "set"
    tar(folder / "train/00000.tar", a__mp4="1", a__txt="a dog\n", a__json='{"url": "x"}', b__mp4="2", b__txt="a cat")
    tar(folder / "train/00001.tar", c__webm="3", c__json=json.dumps(cells), c__npy="numbers", ___c__webm="of a Mac")
    tar(folder / "test/00000.tar", d__mp4="4", d__txt="a fish")
    parquet.write_table(arrow.table({"caption": ["a dog"], "key": ["a"]}), folder / "train/00000.parquet")
    assert found_in(folder, tmp_path / "m.json") == {
        "train": [("a", ["a dog"], None), ("b", ["a cat"], None), ("c", ["a bird", "it sings"], [1.0, 2.5])],
        "test": [("d", ["a fish"], None)],
    }
    assert sorted((file.read_bytes(), file.suffix) for file in (tmp_path / "m/1").iterdir()) == [
        (b"1", ".mp4"),
        (b"2", ".mp4"),
        (b"3", ".webm"),
        (b"4", ".mp4"),
    ]


def test_archives_next_to_tables_are_packed_videos(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for split, name in (("train", "a"), ("test", "b")):
        parquet.write_table(arrow.table({"video": [f"{name}.mp4"], "caption": ["x"]}), tmp_path / f"{split}.parquet")
        (tmp_path / f"{name}.mp4").touch()
    tar(tmp_path / "train_videos.tar", a__mp4="1")
    assert found_in(tmp_path) == {"train": [("a", ["x"], None)], "test": [("b", ["x"], None)]}
    report = import_dataset(tmp_path, None)[1]
    assert report.endswith("are not read, such as train_videos.tar. Unpack them if they contain the videos.")


def test_keys_with_dots_keep_them_and_their_folder_may_be_the_split(tmp_path):
    members = {"train_of_a__1": "one", "train_of_a__2": "two", "test_of_b__1": "three"}
    both = {f"{name}{end}": text for name, text in members.items() for end in ("__mp4", "__txt")}
    tar(tmp_path / "all-00000.tar", **both)
    assert found_in(tmp_path) == {
        "train": [("a.1", ["one"], None), ("a.2", ["two"], None)],
        "test": [("b.1", ["three"], None)],
    }


def test_files_of_a_sample_may_lie_apart_and_be_several_json(tmp_path):
    """`tar` writes them so without --sort=name; downloaders write KEY.info.json next to KEY.mp4.json."""
    apart = {"a__mp4": "1", "b__TXT": "a cat", "b__input__MP4": "2", "a__outputs__txt": "a dog"}
    tar(tmp_path / "train.tar", **apart)
    both = {"c__mp4": "3", "c__info__json": '{"caption": "a fish", "id": 1}', "c__mp4__json": '{"fps": 25, "id": 2}'}
    tar(tmp_path / "test.tar", **both)
    assert found_in(tmp_path) == {
        "train": [("a", ["a dog"], None), ("b", ["a cat"], None)],
        "test": [("c", ["a fish"], None)],
    }


WHOLE = packed(a__mp4="1", a__txt="x", b__mp4="2", b__txt="y")
TWO_VALUES = packed(a__mp4="1", a__json='{"text": "x"}', a__b__json='{"text": "y"}')


def test_a_tar_is_not_read_beyond_its_end(tmp_path):
    arrays = write_arrays(tmp_path / "f.tar", [("a", np.ones(3)), ("b", np.ones(3))])
    arrays.write_bytes(arrays.read_bytes()[: 4 * 512])
    with refuses(where="f.tar"):
        read_arrays(arrays)
    for file, read in ((arrays, read_arrays), (tmp_path / "train.tar", lambda file: import_dataset(file.parent, None))):
        file.write_bytes(WHOLE)
        os.truncate(file, 1 << 40)  # without this limit, hours of reading
        with refuses("64", "4096"):
            read(file)


def saved(folder: Path, form: str, **rows: list[dict[str, object]]) -> Path:
    """Write splits as `datasets.save_to_disk` does (a stream of Arrow), or as pandas and polars do (a file of it)."""
    arrow = pytest.importorskip("pyarrow")
    for split, each in rows.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        table = arrow.Table.from_pylist(each)
        new = arrow.ipc.new_stream if form == "stream" else arrow.ipc.new_file
        with new(folder / split / "data-00000-of-00001.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=1)
        (folder / split / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    return folder


def row(name: str, caption: str) -> dict[str, object]:
    return {"video": {"bytes": name.encode(), "path": f"/elsewhere/{name}.mp4"}, "caption": caption}


@pytest.mark.parametrize("form", ["stream", "file"])
def test_a_folder_of_save_to_disk_is_read_and_its_caches_are_not(tmp_path, form):
    folder = saved(tmp_path / "set", form, train=[row("a", "a dog"), row("b", "a cat")], test=[row("c", "a fish")])
    whole = folder / "train/data-00000-of-00001.arrow"
    (folder / "train/cache-0123456789abcdef.arrow").write_bytes(whole.read_bytes())
    assert found_in(folder, tmp_path / "m.json") == {
        "train": [("a", ["a dog"], None), ("b", ["a cat"], None)],
        "test": [("c", ["a fish"], None)],
    }
    assert sorted(file.read_bytes() for file in (tmp_path / "m/1").iterdir()) == [b"a", b"b", b"c"]


def test_columns_of_other_programs_types_are_names_and_videos(tmp_path):
    """polars writes views, and pandas writes its categories as a dictionary."""
    arrow = pytest.importorskip("pyarrow")
    kinds = {"video_id": arrow.string_view(), "caption": arrow.dictionary(arrow.int32(), arrow.string())}
    for split in ("train", "test"):
        columns = {name: arrow.array([f"{name} of {split}"]).cast(kind) for name, kind in kinds.items()}
        table = arrow.table({**columns, "video": arrow.array([split.encode()]).cast(arrow.binary_view())})
        with arrow.ipc.new_file(tmp_path / f"{split}.arrow", table.schema) as writer:
            writer.write_table(table)
    assert found_in(tmp_path) == {
        "train": [("video_id of train", ["caption of train"], None)],
        "test": [("video_id of test", ["caption of test"], None)],
    }


def test_every_cut_of_arrow_is_refused_also_between_batches(tmp_path):
    folder = saved(tmp_path / "set", "stream", train=[row("a", "a dog"), row("b", "a cat")], test=[row("c", "a fish")])
    file = folder / "train/data-00000-of-00001.arrow"
    whole = file.read_bytes()
    for length in range(0, len(whole) - 1, 8):
        file.write_bytes(whole[:length])
        with refuses(where="data-00000-of-00001.arrow"):
            import_dataset(folder, None)


def test_a_folder_with_an_order_of_its_own_is_not_read_in_another(tmp_path):
    folder = saved(tmp_path, "stream", train=[row("a", "a dog")], test=[row("c", "a fish")])
    (folder / "test/state.json").write_text('{"_indices_data_files": [{"filename": "indices.arrow"}]}')
    with refuses("test/state.json"):
        import_dataset(folder, None)


def test_missing_shards_are_counted(tmp_path):
    folder = saved(tmp_path, "stream", train=[row("a", "a dog")], test=[row("c", "a fish")])
    for number in (0, 2):
        (folder / f"train/data-0000{number}-of-00003.arrow").write_bytes(
            (folder / "train/data-00000-of-00001.arrow").read_bytes()
        )
    (folder / "train/data-00000-of-00001.arrow").unlink()
    _, report = import_dataset(folder, None)
    assert report.endswith("\n2 of 3 shards train/data-*-of-00003.arrow exist.")


def test_videos_of_one_name_are_one_video_only_with_equal_bytes(tmp_path):
    cls = {f"cls{n}/0001{end}": text for n in (1, 2) for end, text in ((".mp4", str(n)), (".txt", f"text {n}"))}
    folder = tmp_path / "set"
    tar(folder / "train-0.tar", **{name.replace("/", "_of_").replace(".", "__"): text for name, text in cls.items()})
    tar(folder / "train-1.tar", cls1_of_0001__mp4="3", cls1_of_0001__txt="text 3")
    tar(folder / "test.tar", cls2_of_0001__mp4="4", cls2_of_0001__txt="text 4")
    found = found_in(folder)
    assert [captions for _, captions, _ in found["train"]] == [["text 1"], ["text 2"], ["text 3"]]
    assert len({video for each in found.values() for video, _, _ in each}) == 4
    tar(folder / "test.tar", cls2_of_0001__mp4="2", cls2_of_0001__txt="text 4")
    with refuses("cls2/0001.mp4", remedy=True):
        import_dataset(folder, None)


@pytest.mark.parametrize("form", ["parquet", "stream", "file"])
@pytest.mark.parametrize("is_bomb", [False, True])
def test_a_shard_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, form, is_bomb):
    """Its videos are zeros, which zstd compresses a thousandfold."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(shard_files, "SPARE", 1 << 20)
    for split in ("train", "test"):
        content = bytes(1 << 18) if is_bomb or split == "test" else os.urandom(1 << 18)
        names = [f"{split}{n}.mp4" for n in range(2 if split == "test" else 9)]
        table = arrow.table({"video": [content] * len(names), "path": names, "caption": names})
        if form == "parquet":
            parquet.write_table(table, tmp_path / f"{split}.parquet", compression="zstd", use_dictionary=False)
        else:
            new = arrow.ipc.new_stream if form == "stream" else arrow.ipc.new_file
            zstd = arrow.ipc.IpcWriteOptions(compression="zstd")
            with new(str(tmp_path / f"{split}.arrow"), table.schema, options=zstd) as writer:
                writer.write_table(table)
    if is_bomb:
        with refuses("20", where=f"train.{'parquet' if form == 'parquet' else 'arrow'}", remedy=True):
            import_dataset(tmp_path, None)
    else:
        assert {split: len(found) for split, found in found_in(tmp_path).items()} == {"train": 9, "test": 2}


def test_the_size_of_an_arrow_stream_is_that_of_its_decompressed_buffers(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    words = arrow.array(["a", "b", "a", None]).dictionary_encode()
    table = arrow.table({"words": words, "zeros": arrow.array([bytes(4096)] * 4), "nothing": arrow.nulls(4)})
    for compression in (None, "zstd", "lz4"):
        options = arrow.ipc.IpcWriteOptions(compression=compression)
        with arrow.ipc.new_stream(str(tmp_path / "t.arrow"), table.schema, options=options) as writer:
            writer.write_table(table)
        with arrow.memory_map(str(tmp_path / "t.arrow")) as source:
            found = declared_bytes(source)
        (batch,) = table.to_batches()
        columns = batch["zeros"], batch["words"].indices
        buffers = sum(len(each) for column in columns for each in column.buffers() if each)
        assert buffers <= found <= buffers + 512  # rows, padding and the dictionary
