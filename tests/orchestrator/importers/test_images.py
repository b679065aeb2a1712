"""The published files of CIFAR and Tiny-ImageNet become streams of images that hold each picture once, in its class."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctvr.orchestrator.importers import images
from ctvr.orchestrator.importers.command import import_stream
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses


class Runs:
    """Object whose pickle would create a file if it were executed."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def drawn(seed: int, count: int, classes: int) -> tuple[np.ndarray, list[int]]:
    """Return rows of pixels and as many labels, with each class equally often."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3072), np.uint8), rng.permutation(np.arange(count) % classes).tolist()


def write_cifar(folder: Path, kind: str, *, is_binary: bool, mark: Path | None = None) -> dict[str, tuple]:
    folder.mkdir()
    ten = kind == "cifar-10"
    parts = {"train": [f"data_batch_{n}" for n in range(1, 6)] if ten else ["train"]}
    parts["test"] = ["test_batch" if ten else "test"]
    told: dict[str, tuple] = {}
    for split, stems in parts.items():
        found = [drawn(number + len(split), 20 if ten else 200, 10 if ten else 100) for number in range(len(stems))]
        for stem, (rows, labels) in zip(stems, found):
            coarse = [[label // 5] for label in labels]
            if is_binary:
                before = np.array([[label] for label in labels]) if ten else np.c_[coarse, labels]
                (folder / f"{stem}.bin").write_bytes(np.c_[before.astype(np.uint8), rows].tobytes())
                continue
            names = ("labels",) if ten else ("fine_labels", "coarse_labels")
            content = {"batch_label": "training batch 1 of 5", names[0]: labels, "data": rows, "filenames": ["a.png"]}
            content |= {name: [0] * len(labels) for name in names[1:]}
            if mark is not None:
                content["batch_label"] = Runs(mark)
            (folder / stem).write_bytes(pickle.dumps(content, 2))
        told[split] = np.concatenate([rows for rows, _ in found]), np.concatenate([labels for _, labels in found])
    return told


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize(("kind", "tasks", "step"), [("cifar-10", 5, 2), ("cifar-100", 20, 5)])
def test_cifar_comes_class_by_class_in_the_order_of_labels(tmp_path, kind, tasks, step, is_binary):
    mark = tmp_path / "executed"
    told = write_cifar(tmp_path / "files", kind, is_binary=is_binary, mark=mark)
    text = import_stream(kind, {"folder": str(tmp_path / "files")}, None, tmp_path)
    assert "next: ctvr run --method image_finetune --stream " + kind in text
    assert "Not the published stream" in text  # which has 5,000 or 500 of a class
    assert not mark.exists()
    stream = load_stream(kind, tmp_path)
    assert (len(stream.tasks), len(stream.tasks[0].categories), stream.protocol, stream.paper) == (
        tasks,
        step,
        "ucl",
        None,
    )
    names = [name for task in stream.tasks for name in task.categories]
    assert names == [f"class_{label:02d}" for label in range(tasks * step)]
    for split, (rows, labels) in told.items():
        items = [item for index in range(tasks) for item in stream.items(index, split)]
        for label, item in enumerate(items):
            planes = rows[labels == label].reshape(-1, 3, 32, 32)
            assert np.array_equal(np.load(item.path).transpose(0, 3, 1, 2), planes)
        assert [item.category for item in items] == names


def test_a_seed_determines_only_the_classes_of_each_task(tmp_path):
    write_cifar(tmp_path / "files", "cifar-10", is_binary=True)
    words = {"folder": str(tmp_path / "files")}
    for more in ({}, {"classes": "3"}, {"classes": "4"}):
        import_stream("cifar-10", {**words, **more}, None, tmp_path)
    names = ("cifar-10", "cifar-10-classes-3", "cifar-10-classes-4")
    plain, drawn, other = (load_stream(name, tmp_path) for name in names)
    orders = [[name for task in stream.tasks for name in task.categories] for stream in (plain, drawn, other)]
    assert orders[1] != orders[0]
    assert orders[2] != orders[1]
    assert sorted(orders[1]) == sorted(orders[0])
    assert drawn.paper is None
    contents = [
        {item.category: np.load(item.path).tobytes() for t in range(5) for item in stream.items(t, "train")}
        for stream in (plain, drawn)
    ]
    assert contents[0] == contents[1]
    with refuses("classes=-1"):
        import_stream("cifar-10", {**words, "classes": "-1"}, None, tmp_path)


def test_published_stream_is_shown_next_to_the_paper(tmp_path, monkeypatch):
    few = images._Benchmark(10, 2, {"train": 10, "test": 2})
    monkeypatch.setitem(images.BENCHMARKS, "cifar-10", few)
    write_cifar(tmp_path / "files", "cifar-10", is_binary=True)
    (tmp_path / "files" / "batches.meta.txt").write_text("\n".join(f"name{number}" for number in range(10)) + "\n\n")
    import_stream("cifar-10", {"folder": str(tmp_path / "files")}, None, tmp_path)
    stream = load_stream("cifar-10", tmp_path)
    assert (stream.paper, stream.tasks[1].categories) == ("cifar-10", ("name2", "name3"))
    for content, values in (
        (b"\0" * 3072, ("3072", "3073")),
        (b"\x0b" + b"\0" * 3072, ("11", "cifar-10", "10")),
    ):
        (tmp_path / "files" / "data_batch_2.bin").write_bytes(content)
        with refuses(*values):
            import_stream("cifar-10", {"folder": str(tmp_path / "files")}, None, tmp_path)
    (tmp_path / "files" / "data_batch_2").write_bytes(b"no pickle")
    with refuses("data_batch_2"):
        import_stream("cifar-10", {"folder": str(tmp_path / "files")}, None, tmp_path)
    (tmp_path / "files" / "test_batch.bin").unlink()
    (tmp_path / "files" / "data_batch_2").unlink()
    write_cifar(tmp_path / "again", "cifar-10", is_binary=True)
    (tmp_path / "again" / "test_batch.bin").unlink()
    with refuses("test_batch.bin"):
        import_stream("cifar-10", {"folder": str(tmp_path / "again")}, None, tmp_path)


def test_tiny_imagenet_takes_the_first_hundred_folders(tmp_path):
    folder, lines = tmp_path / "tiny-imagenet-200", []
    (folder / "val" / "images").mkdir(parents=True)
    for number in range(102):
        place = folder / "train" / f"n{number:08d}" / "images"
        place.mkdir(parents=True)
        Image.new("L" if number else "RGB", (64, 64), number).save(place / "a.JPEG")
        Image.new("RGB", (64, 64), (number, 0, 0)).save(folder / "val" / "images" / f"val_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\tn{number:08d}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    import_stream("tiny-imagenet", {"folder": str(folder)}, None, tmp_path)
    stream = load_stream("tiny-imagenet", tmp_path)
    assert (len(stream.tasks), stream.tasks[19].categories[-1]) == (20, "n00000099")
    (item, *_) = stream.items(2, "test")  # class 10
    picture = np.load(item.path)
    assert picture.shape == (1, 64, 64, 3)
    assert np.abs(picture.mean(axis=(0, 1, 2)) - [10, 0, 0]).max() < 3  # JPEG
    Image.new("RGB", (32, 64)).save(folder / "train" / "n00000007" / "images" / "b.JPEG")
    with refuses("b.JPEG", "32", "64"):
        import_stream("tiny-imagenet", {"folder": str(folder)}, None, tmp_path)
