"""Importers of CIFAR-10, CIFAR-100 and Tiny-ImageNet in their published formats (BMU-MoCo, Table 4).

Tasks contain the classes in the order of their labels, two or five each, as in divyam3897/UCL@cfaa81d: 5 tasks of
CIFAR-10, 20 of CIFAR-100, and 20 of the first 100 classes of Tiny-ImageNet, whose labels are assumed to be its 200
folders in alphabetical order. The training split has all training images, the test split all other labeled images.
BMU-MoCo's text describes random classes instead: `classes=SEED` sets a random order.

Shapes: N images of a class, S = 32 or 64 pixels per side.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.data.pickles import BROKEN
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.array_folder import new_arrays
from ctvr.orchestrator.importers.builder import Builder, Manifest, empty_task
from ctvr.orchestrator.text_files import lines_of, open_regular, read_bytes, read_text

SETTINGS: dict[str, Any] = {  # settings of divyam3897/UCL@cfaa81d
    "preset": "paper",
    "backbone.name": "resnet18",
    "backbone.weights": "random",
    "data.num_frames": 1,
    "data.batch_size": 256,
    "optim.name": "sgd",
    "optim.momentum": 0.9,
    "optim.weight_decay": 5e-4,
    "optim.schedule": "constant",
    "optim.warmup": 0.0,
    "optim.grad_clip": None,
    "optim.carry_momentum": True,
    "optim.epochs": 200,
}
MAX_BYTES = 1 << 28  # limit per file; the largest published file has 155 MB
MAX_TEXT = 1 << 24  # limit for names and labels; the largest published file has 400 kB


@dataclass(frozen=True)
class _Benchmark:
    classes: int
    per_task: int
    published: dict[str, int]  # images per class


BENCHMARKS = {
    "cifar-10": _Benchmark(10, 2, {"train": 5_000, "test": 1_000}),
    "cifar-100": _Benchmark(100, 5, {"train": 500, "test": 100}),
    "tiny-imagenet": _Benchmark(100, 5, {"train": 500, "test": 50}),
}
Split = tuple[np.ndarray, np.ndarray]  # (N, S, S, 3) uint8 and (N,) labels


def import_images(kind: str, folder: Path, out: Path, classes: int | None = None) -> tuple[Manifest, str]:
    """Import a stream of images from the files of a benchmark.

    Args:
        kind: one of BENCHMARKS.
        folder: for CIFAR, the folder of the "python version" (data_batch_1, test_batch; train, test) or the "binary
            version" (the same names with .bin); for Tiny-ImageNet, the folder with train/ and val/.
        out: file of the manifest; the arrays of the classes are in a numbered subfolder of `out` without its suffix.
        classes: seed of a random order of the classes in tasks; None keeps the order of their labels.

    The return value and errors are those of `import_msrvtt`.
    """
    if not Path(folder).is_dir():
        raise ConfigError(f"{folder} is not a folder", "folder", remedy=f"Pass the folder of the unpacked {kind}.")
    if out.suffix != ".json":
        raise ConfigError(f"{out} does not end in .json", "out", remedy=f"Use for example streams/{kind}.json.")
    read = (_tiny if kind == "tiny-imagenet" else _cifar)(kind, Path(folder))
    with new_arrays(out.with_suffix(""), Path(folder)) as places:
        return _write(kind, folder, out, classes, read, places)


def _write(
    kind: str,
    folder: Path,
    out: Path,
    classes: int | None,
    read: tuple[list[str], list[Path], dict[str, Split]],
    places: Path,
) -> tuple[Manifest, str]:
    """Write the arrays of the classes into `places`, and the manifest."""
    names, files, splits = read
    benchmark = BENCHMARKS[kind]
    counts: dict[str, set[int]] = {}
    for split, (images, labels) in splits.items():
        for label, category in enumerate(names):
            chosen = images[labels == label]
            if not len(chosen):
                raise ConfigError(f"no {split} image of {category}", folder, remedy=f"Unpack {kind} again.")
            counts.setdefault(split, set()).add(len(chosen))
            (places / split).mkdir(exist_ok=True)
            np.save(places / split / f"{category}.npy", chosen)
    items = {
        split: [{"video": f"{split}_{c}", "path": f"{split}/{c}.npy", "category": c} for c in names] for split in splits
    }
    if classes is not None:
        order = np.random.default_rng(classes).permutation(len(names))
        names, items = [names[i] for i in order], {split: [items[split][i] for i in order] for split in items}
    step = benchmark.per_task
    tasks = [
        empty_task()
        | {"categories": names[start : start + step], **{split: items[split][start : start + step] for split in items}}
        for start in range(0, len(names), step)
    ]
    is_published = all(counts[split] == {n} for split, n in benchmark.published.items())
    published = {split: len(names) if is_published else -1 for split in splits}
    if classes is not None:  # the release uses another order, so these tasks are not compared with published results
        return Builder(places, out).finish(f"{kind}-classes-{classes}", "ucl", tasks, SETTINGS, files)
    return Builder(places, out).finish(kind, "ucl", tasks, SETTINGS, files, published)


# ------------------------------------------------------------------------------------ CIFAR


def _cifar(kind: str, folder: Path) -> tuple[list[str], list[Path], dict[str, Split]]:
    parts = {"train": ["train"], "test": ["test"]}
    if kind == "cifar-10":
        parts = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
    used: list[Path] = []
    splits = {}
    for split, stems in parts.items():
        found = []
        for stem in stems:
            path = next((p for p in (folder / stem, folder / f"{stem}.bin") if p.is_file()), None)
            if path is None:
                raise ConfigError(
                    f"neither this file nor {stem}.bin exists", folder / stem, remedy=f"Unpack {kind} there."
                )
            used.append(path)
            found.append(_binary(path, kind) if path.suffix == ".bin" else _pickled(path, kind))
        splits[split] = np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])
    return _names_of_cifar(kind, folder), used, splits


def _binary(path: Path, kind: str) -> Split:
    """Read records: a label (in CIFAR-100 after a coarse label) and 3072 bytes, the red, green and blue planes."""
    before = 1 if kind == "cifar-10" else 2
    data = np.frombuffer(read_bytes(path, MAX_BYTES), np.uint8)
    if not len(data) or len(data) % (before + 3072):
        raise ConfigError(f"{path}: {len(data)} bytes is not a multiple of {before + 3072}. Download {kind} again.")
    records = data.reshape(-1, before + 3072)
    return _pixels(records[:, before:]), _labels(records[:, before - 1].astype(np.int64), path, kind)


def _pickled(path: Path, kind: str) -> Split:
    """Read images (the longest string) and labels from a pickle, whose opcodes are parsed but never executed."""
    wanted, data, labels = "labels" if kind == "cifar-10" else "fine_labels", b"", []
    key = ""
    try:
        for opcode, argument, _ in pickletools.genops(read_bytes(path, MAX_BYTES)):
            text = argument.decode("latin-1") if isinstance(argument, bytes) else argument
            if isinstance(text, str) and len(text) > 3071:
                data = text.encode("latin-1")
            elif isinstance(text, str) and opcode.name != "GLOBAL":
                key = text
            elif opcode.name in ("BININT", "BININT1", "BININT2") and isinstance(text, int) and key == wanted:
                labels.append(text)
    except ConfigError:
        raise
    except BROKEN as error:
        raise ConfigError(f"damaged, or not {kind}'s python version", path, remedy="Download it again.") from error
    if not data or len(data) != 3072 * len(labels):
        raise ConfigError(f"{path}: has {len(data)} bytes of images and {len(labels)} {wanted}. Download it again.")
    return _pixels(np.frombuffer(data, np.uint8).reshape(-1, 3072)), _labels(np.array(labels), path, kind)


def _pixels(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _labels(labels: np.ndarray, path: Path, kind: str) -> np.ndarray:
    if labels.min() < 0 or labels.max() >= BENCHMARKS[kind].classes:
        fault = f"has labels {labels.min()} to {labels.max()}, but {kind} has 0 to {BENCHMARKS[kind].classes - 1} only"
        raise ConfigError(fault, path, remedy="Download it again.")
    return labels


def _names_of_cifar(kind: str, folder: Path) -> list[str]:
    """Return the class names in the binary version's text file, or `class_NN` if it is missing."""
    count = BENCHMARKS[kind].classes
    for file in (folder / "batches.meta.txt", folder / "fine_label_names.txt"):
        if file.is_file():
            names = [line.strip() for line in lines_of(read_text(file, MAX_TEXT)) if line.strip()]
            if len(set(names)) == count and all(name.replace("_", "").isalnum() for name in names):
                return names
    return [f"class_{label:02d}" for label in range(count)]


# ------------------------------------------------------------------------------------ Tiny-ImageNet


def _tiny(kind: str, folder: Path) -> tuple[list[str], list[Path], dict[str, Split]]:
    table, classes = folder / "val" / "val_annotations.txt", BENCHMARKS[kind].classes
    if not table.is_file() or not (folder / "train").is_dir():
        raise ConfigError(f"{folder}: has no train/ and val/val_annotations.txt. Pass the unpacked tiny-imagenet-200.")
    names = sorted(place.name for place in (folder / "train").iterdir() if place.is_dir())[:classes]
    if len(names) < classes:
        raise ConfigError(f"has {len(names)} class folders, not {classes}", folder / "train", remedy="Unpack it again.")
    number = {name: label for label, name in enumerate(names)}
    train = ((path, number[name]) for name in names for path in sorted((folder / "train" / name / "images").iterdir()))
    lines = (line.split("\t") for line in lines_of(read_text(table, MAX_TEXT)))
    test = [(folder / "val" / "images" / line[0], number[line[1]]) for line in lines if line[1:2] and line[1] in number]
    return names, [table], {"train": _jpegs(train), "test": _jpegs(test)}


def _jpegs(files: Iterable[tuple[Path, int]]) -> Split:
    images, labels = [], []
    for image, label in _read(files):
        images.append(image)
        labels.append(label)
    return np.stack(images) if images else np.zeros((0, 64, 64, 3), np.uint8), np.array(labels)


def _read(files: Iterable[tuple[Path, int]]) -> Iterator[tuple[np.ndarray, int]]:
    from PIL import Image

    for path, label in files:
        if not path.suffix.lower().startswith(".jp"):
            continue
        try:
            with open_regular(path) as file, Image.open(file, formats=["JPEG"]) as opened:
                if opened.size != (64, 64):
                    raise ConfigError(f"{path}: is {opened.size[0]} x {opened.size[1]}, not 64 x 64. Unpack it again.")
                image = np.array(opened.convert("RGB"))  # some are grayscale
        except ConfigError:
            raise
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ConfigError(f"{path}: the image is missing or damaged. Unpack tiny-imagenet-200 again.") from error
        yield image, label
