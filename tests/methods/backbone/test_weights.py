"""A published pickle is read only if its digest is given, in a child, and none of its code is run."""

import hashlib
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import ctvr
from ctvr.methods.backbone import weights
from ctvr.methods.backbone.load import are_here, load_backbone
from ctvr.methods.backbone.weights import convert, read_weights
from ctvr.sandbox.isolate import PERMIT


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Call:
    """Object whose pickle is a call of `function(*arguments)`."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


def payloads(canary: Path) -> dict[str, bytes]:
    """Return pickles that create the file `canary` when they are loaded."""
    touch = f"touch {canary}"
    write = f"open({str(canary)!r}, 'w').close()"
    text = touch.encode()
    short = b"X" + struct.pack("<I", len(text)) + text
    made = {
        "os.system": pickle.dumps(Call(os.system, touch)),
        "os.system, protocol 0": pickle.dumps(Call(os.system, touch), 0),
        "os.system, protocol 2": pickle.dumps(Call(os.system, touch), 2),
        "eval": pickle.dumps(Call(eval, write)),
        "exec": pickle.dumps(Call(exec, write)),
        "subprocess": pickle.dumps(Call(subprocess.check_call, ["touch", str(canary)])),
        "a path writes": pickle.dumps(Call(Path.touch, canary)),
        "as a weight": pickle.dumps({"visual.proj": Call(os.system, touch)}),
        "as a key": b"\x80\x02}cposix\nsystem\n" + short + b"\x85RK\x01s.",
        "inst": b"(" + short + b"iposix\nsystem\n.",
        "obj": b"(cposix\nsystem\n" + short + b"o.",
        "an import inside": pickle.dumps(Call(eval, f"__import__('os').system({touch!r})"), 2),
    }
    return made


def bare(payload: bytes) -> bytes:
    return payload


def in_zip(payload: bytes) -> bytes:
    """Return torch's own format, with the payload as the object that describes the tensors."""
    whole, changed = io.BytesIO(), io.BytesIO()
    torch.save({"visual.proj": torch.zeros(2, 2)}, whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            new.writestr(name, payload if name.endswith("data.pkl") else old.read(name))
    return changed.getvalue()


def behind_magic(payload: bytes) -> bytes:
    """Return torch's format before 1.6: three numbers and a description of the machine, then the object."""
    start = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})
    return b"".join(pickle.dumps(each, 2) for each in start) + payload


CONTAINERS: dict[str, Callable[[bytes], bytes]] = {"bare": bare, "zip": in_zip, "legacy": behind_magic}
PAYLOADS = list(payloads(Path("x")))


@pytest.mark.parametrize("name", PAYLOADS)
def test_every_gadget_executes_code_when_unpickled(tmp_path, name):
    pickle.loads(payloads(tmp_path / "canary")[name])
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", PAYLOADS)
def test_no_gadget_is_executed(tmp_path, name, container):
    file = tmp_path / "weights.pt"
    file.write_bytes(CONTAINERS[container](payloads(tmp_path / "canary")[name]))
    answer = convert(file, digest(file), tmp_path / "out.safetensors")
    assert answer["error"]
    assert "\n" not in answer["error"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["weights.pt"]


@pytest.mark.slow
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_gadget_given_as_weights_is_one_line(tmp_path, container):
    file = tmp_path / "weights.pt"
    file.write_bytes(CONTAINERS[container](payloads(tmp_path / "canary")["os.system"]))
    with pytest.raises(ValueError, match="is read as a pickle, which can contain a program.*backbone.sha256=DIGEST"):
        load_backbone("tiny-clip", str(file))
    with pytest.raises(ValueError, match=r"weights\.pt: is damaged or not a weights file") as caught:
        load_backbone("tiny-clip", str(file), sha256=digest(file))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "canary").exists()


@pytest.mark.slow
def test_tensors_come_through_the_child_as_they_were(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    state = {"a": shared, "b": shared.T, "half": shared.half(), "n": torch.tensor([1, 2])}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "w.pth")
    found = read_weights(tmp_path / "w.pth", digest(tmp_path / "w.pth").upper())
    assert found.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(found[name], value)
        assert found[name].dtype == value.dtype


@pytest.mark.slow
def test_another_file_than_the_digest_says_is_refused(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "w.pt")
    save_file({"a": torch.zeros(2)}, tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        file = tmp_path / name
        with pytest.raises(ValueError, match=f"its SHA-256 is {digest(file)}, not backbone.sha256"):
            read_weights(file, "0" * 64)
        assert read_weights(file, digest(file)).keys() == {"a"}
    assert read_weights(tmp_path / "w.safetensors", "").keys() == {"a"}  # cannot hold a program


@pytest.mark.parametrize("text", ["1234", "z" * 64, "sha256:" + "0" * 57])
def test_a_text_that_is_not_a_sha256_is_reported(tmp_path, text):
    (tmp_path / "w.pt").touch()
    with pytest.raises(ValueError, match="is not a SHA-256. Use the 64 hexadecimal digits"):
        read_weights(tmp_path / "w.pt", text)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "damaged or not a weights file"),
        (b"no pickle", "damaged or not a weights file"),
        (pickle.dumps([1, 2]), "damaged or not a weights file"),
        (pickle.dumps({"a": 1}), "damaged or not a weights file"),
    ],
)
def test_a_file_without_weights_is_reported(tmp_path, content, reason):
    (tmp_path / "w.pt").write_bytes(content)
    assert "error" in convert(tmp_path / "w.pt", digest(tmp_path / "w.pt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_landlock_no_pickle_is_read(tmp_path, monkeypatch):
    monkeypatch.delenv(PERMIT, raising=False)
    monkeypatch.setattr("ctvr.sandbox.isolate.landlock", lambda: 0)
    (tmp_path / "w.pt").write_bytes(b"weights")
    with pytest.raises(ValueError, match=f"{PERMIT}=1"):
        read_weights(tmp_path / "w.pt", digest(tmp_path / "w.pt"))


@pytest.mark.parametrize("length", [ord("<"), ord("\n"), 0x8B1F, 0x685A42, 0x04034B50])  # starts of other files
def test_a_safetensors_is_judged_by_its_header_not_by_the_bytes_of_its_length(tmp_path, length):
    header = b'{"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "w.safetensors").write_bytes(length.to_bytes(8, "little") + header.ljust(min(length, 99)) + bytes(4))
    with pytest.raises(ValueError, match=r"w\.safetensors: is damaged \(") as caught:
        read_weights(tmp_path / "w.safetensors", "")
    assert not [each for each in ("web page", "compressed", "torch.save", "empty") if each in str(caught.value)]


@pytest.mark.slow
def test_a_file_under_another_ending_says_what_to_rename(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt: is a \.safetensors file .* Rename it to a\.safetensors"):
        read_weights(tmp_path / "a.pt", digest(tmp_path / "a.pt"))
    torch.save({"a": torch.ones(2)}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"is a file of torch\.save .* Rename it to b\.pt"):
        read_weights(tmp_path / "b.safetensors", "")


def child(code: str) -> subprocess.CompletedProcess[str]:
    """Return a Python program with this module's functions, for the child."""
    folders = [str(Path(each.__file__).parents[depth]) for each, depth in ((weights, 0), (ctvr, 1))]
    start = f"import sys; sys.path[:0] = {folders}; import weights\n"
    return subprocess.run([sys.executable, "-I", "-c", start + code], capture_output=True, text=True, check=False)


def test_the_child_may_not_take_all_memory_or_disk(tmp_path):
    many = child("weights._limit_resources(10)\nbytearray(4 << 30)")
    assert "MemoryError" in many.stderr
    large = child(f"weights._limit_resources(10)\nopen({str(tmp_path / 'x')!r}, 'wb').write(bytes(4 << 20))")
    assert large.returncode != 0
    assert (tmp_path / "x").stat().st_size <= 2 << 20


@pytest.mark.slow
def test_a_child_that_writes_without_end_is_ended_and_fills_no_memory(tmp_path, monkeypatch):
    torch.save({"a": torch.zeros(2)}, tmp_path / "w.pt")
    flood = "from ctvr.methods.backbone import weights; "
    flood += "weights.convert = lambda *_: [sys.stdout.write('x' * 65536) for _ in iter(int, 1)]; "
    monkeypatch.setattr(weights, "_CHILD", weights._CHILD.replace("from ctvr.methods", flood + "from ctvr.methods", 1))
    with pytest.raises(ValueError, match=r"w\.pt: the process that read it ended with "):
        read_weights(tmp_path / "w.pt", digest(tmp_path / "w.pt"))


@pytest.mark.slow
def test_a_file_that_unpacks_to_gigabytes_is_refused(tmp_path):
    whole = io.BytesIO()
    torch.save({"a": torch.zeros(2)}, whole)
    pretended = 3 << 30
    with (
        zipfile.ZipFile(whole) as old,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for name in old.namelist():
            if name.endswith("/data/0"):
                with new.open(name, "w", force_zip64=True) as member:
                    for _ in range(pretended >> 26):
                        member.write(bytes(1 << 26))
            else:
                new.writestr(name, old.read(name))
    with pytest.raises(ValueError, match=r"bomb\.pt: "):
        read_weights(tmp_path / "bomb.pt", digest(tmp_path / "bomb.pt"))


def test_weights_are_looked_for_and_not_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert are_here("tiny-clip", "shipped")
    assert not are_here("ViT-B-32-quickgelu", str(tmp_path / "none.safetensors"))
    (tmp_path / ".cache" / "clip").mkdir(parents=True)
    (tmp_path / ".cache" / "clip" / "ViT-B-16.pt").touch()
    assert are_here("ViT-B-16-quickgelu", "openai")
    assert not are_here("ViT-B-32-quickgelu", "openai")
