"""Plants edits of code and data that a plug-in depends on, and reports whether the digests of a run's key notice them.

`key_plantings.json` is the list of plantings; it was written before the code that they test. `python -m
tests.orchestrator.keys.key_plantings --seed 1 --draw 20` draws that many edits that must change the key, plants
them and all edits that must not, and exits with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ctvr import methods
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.keys.foreign_code import digest_plugins
from ctvr.orchestrator.keys.run_key import code_digests, protocol_digest, stream_digest, weights_digest
from ctvr.orchestrator.streams.load import load_stream

Planting = dict[str, Any]
LIST = Path(__file__).with_name("key_plantings.json")
CLASS = """
from dataclasses import dataclass as _dataclass
from ctvr import Method as _Method
@_dataclass(frozen=True)
class {name}Config:
    pass
class {name}({base}):
    Config = {name}Config
    def __init__(self, config, backbone):
        super().__init__()
    def encode_video(self, frames):
        return frames
    def encode_text(self, tokens, task=None):
        return tokens
"""
OTHERS = {"@PROTOCOL": "class Protocol:\n    pass\n", "@STREAM": "manifest = 's.json'\n", "@SEARCHER": "M = object\n"}
GROUP = {"protocol": "protocols", "stream": "streams", "searcher": "searchers"}
ARCHITECTURE = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 100, "width": 64, "heads": 2, "layers": 2},
}


def plantings() -> list[Planting]:
    """Return the list of plantings."""
    return json.loads(LIST.read_text(encoding="utf-8"))


def notices(planting: Planting, folder: Path) -> bool:
    """Return whether the key changes with the planted edit."""
    if planting["how"] == "features":
        before, after = (_features(folder, planting["what"] if edited else "") for edited in (False, True))
    elif planting["how"] == "backbone":
        before, after = (_backbone(folder, planting["what"] if edited else "") for edited in (False, True))
    else:
        root = folder / "here"
        _write(root, planting["files"], planting)
        _describe(root, planting, planting.get("version", "1"))
        before = _code(root, planting)
        if planting.get("move"):
            root = Path(shutil.move(root, folder / "there"))
        _write(root, planting["edit"], planting)
        _describe(root, planting, planting.get("new_version", planting.get("version", "1")))
        after = _code(root, planting)
    return before != after


def _write(root: Path, files: dict[str, str | None], planting: Planting) -> None:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        word, _, rest = (content or "").partition(" ")
        if content is None:
            file.unlink()
        elif word == "@LINK":
            file.symlink_to(root / rest)
        elif word == "@TOUCH":
            os.utime(file, (1, 1))
        elif word == "@BYTES":
            file.write_bytes(rest.encode())
        elif word == "@ZIP":
            member, _, source = rest.partition(" ")
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(member, source)
        elif word == "@PYC":
            _compile(rest, file)
        else:
            file.write_text(_expanded(content), encoding=planting.get("encoding", "utf-8"))


def _compile(source: str, file: Path) -> None:
    import py_compile

    plain = file.with_suffix(".source")
    plain.write_text(source)
    py_compile.compile(str(plain), str(file), doraise=True)
    plain.unlink()


def _expanded(content: str) -> str:
    lines = []
    for line in content.splitlines():
        if line.startswith("@CLASS "):
            name, _, base = line.removeprefix("@CLASS ").rstrip(")").partition("(")
            lines.append(CLASS.format(name=name, base=base or "_Method"))
        else:
            lines.append(OTHERS.get(line, line))
    return "\n".join(lines) + "\n"


def _describe(root: Path, planting: Planting, version: str) -> None:
    """Write the metadata of an installed distribution, as an installer does, or of entry points."""
    how = planting["how"]
    if how in GROUP:
        target = {"protocol": "plug:Protocol", "stream": "plug:manifest", "searcher": "plug:M"}[how]
        _dist_info(root, "planted", "1", [], entry=f"[ctvr.{GROUP[how]}]\nplanted = {target}\n")
    elif how == "distribution":
        more = planting.get("dist2")
        _dist_info(root / "site", planting["dist"], version, _files(root / "site"), requires=more)
        if more:
            _dist_info(root / "site2", more, "1", _files(root / "site2"))
    elif how == "editable":
        (root / "site").mkdir(exist_ok=True)
        (root / "site" / "__editable__.pth").write_text(str(root / "src"))
        _dist_info(root / "site", planting["dist"], version, [root / "site" / "__editable__.pth"])


def _files(site: Path) -> list[Path]:
    return [file for file in sorted(site.rglob("*")) if file.is_file() and ".dist-info" not in str(file)]


def _dist_info(
    site: Path, name: str, version: str, files: list[Path], requires: str | None = None, entry: str = ""
) -> None:
    for old in site.glob(f"{name.replace('-', '_')}-*.dist-info"):
        shutil.rmtree(old)
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    if entry:
        (folder / "entry_points.txt").write_text(entry)
    if files:
        rows = [f"{file.relative_to(site)},sha256={hashlib.sha256(file.read_bytes()).hexdigest()},1" for file in files]
        (folder / "RECORD").write_text("\n".join([*rows, f"{folder.name}/RECORD,,"]) + "\n")


def _code(root: Path, planting: Planting) -> Any:
    """Return the digests of a plug-in's code as a new process finds them."""
    entry, how = planting["entry"], planting["how"]
    with _path(root, planting["path"]):
        if how == "protocol":
            return protocol_digest("planted")
        if how == "stream":
            return stream_digest("planted")
        if how == "searcher":
            return digest_plugins()
        methods.trust([entry])
        methods.find_method(entry)
        found = code_digests("lwf", entry) if how == "base" else code_digests(entry)
        assert f"code of {entry}" in found
        return found


@contextmanager
def _path(root: Path, folders: list[str]) -> Iterator[None]:
    """Import from folders of a planting; forget its modules and its classes afterwards."""
    path, modules, trusted = list(sys.path), set(sys.modules), set(methods._trusted)
    is_writing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path[:0] = [str(root / folder) for folder in folders]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, is_writing
        methods._trusted.intersection_update(trusted)
        for name in set(sys.modules) - modules:
            file = str(getattr(sys.modules[name], "__file__", None) or root)
            if file.startswith(str(root)):
                del sys.modules[name]


def _features(folder: Path, edit: str) -> Any:
    """Return the digest of an imported stream of four videos."""
    rows = [("a", "train", 1), ("b", "test", 1), ("c", "train", 2), ("d", "test", 2)]
    table = folder / "table.csv"
    lines = [f"{video},caption of {video},k,{split},{task}" for video, split, task in rows]
    table.write_text("\n".join(["video,caption,category,split,task", *lines]))
    videos = {video: np.full((2, 3), number + 0.1, np.float32) for number, (video, *_) in enumerate(rows)}
    texts = {f"caption of {video}": np.full(3, number + 0.1, np.float32) for number, (video, *_) in enumerate(rows)}
    if edit == "video":
        videos["d"][1, 2] += 1e-3
    elif edit == "exchange":
        videos["a"], videos["c"] = videos["c"], videos["a"]
    elif edit == "text":
        texts["caption of b"][0] += 1e-3
    elif edit == "dtype":
        videos = {video: array.astype(np.float16) for video, array in videos.items()}
    np.savez(folder / "videos.npz", **videos)
    np.savez(folder / "texts.npz", **texts)
    out = folder / "streams" / "planted.json"
    import_features(table, folder / "videos.npz", folder / "texts.npz", out, "planted")
    return load_stream(out, folder).digest


def _backbone(folder: Path, edit: str) -> str:
    """Return the digest of the backbone of an architecture that the user has registered."""
    import open_clip
    from open_clip import factory

    described = json.loads(json.dumps(ARCHITECTURE))
    if edit == "heads":
        described["vision_cfg"]["head_width"] = 16
    elif edit == "activation":
        described["quick_gelu"] = True
    elif edit == "text layers":
        described["text_cfg"]["layers"] = 3
    file = folder / "planted-tiny.json"
    file.write_text(json.dumps(described))
    open_clip.add_model_config(file)
    try:
        return weights_digest("planted-tiny", "random")
    finally:
        factory._MODEL_CONFIGS.pop("planted-tiny", None)
        factory._MODEL_CONFIG_PATHS.remove(file)


def main() -> None:
    """Draw plantings, plant them and print the result of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw (default: 1)")
    parser.add_argument("--draw", type=int, default=20, help="number of edits that must change the key (default: 20)")
    words = parser.parse_args()
    listed = plantings()
    relevant = [each for each in listed if each["changes"]]
    drawn = random.Random(words.seed).sample(relevant, min(words.draw, len(relevant)))
    right = []
    for each in [*drawn, *(each for each in listed if not each["changes"])]:
        with tempfile.TemporaryDirectory() as folder:
            changed = notices(each, Path(folder))
        right.append(changed == each["changes"])
        print(f"{'right' if right[-1] else 'WRONG'}  {'changes' if changed else 'stays':<8} {each['kind']}")  # noqa: T201
    print(f"{sum(right)} of {len(right)} right, {len(drawn)} of them edits that must change the key")  # noqa: T201
    sys.exit(not all(right))


if __name__ == "__main__":
    main()
