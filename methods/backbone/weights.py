"""Reads the weights of third-party pickles in a restricted child process, after checking the file's SHA-256.

A `.pt` file can contain code in the language of pickle. The reader of inert.py does not run it, but similar guarantees
have failed before (CVE-2025-32434, torch below 2.6). So the user gives the file's SHA-256, and a child process reads
the file. The child cannot open other files, its environment does not contain credentials, and its memory, CPU time and
written files are limited. Where the system allows it, the child cannot use the network either (ctvr/sandbox). The child
returns tensors as safetensors, which cannot contain code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.sandbox.isolate import PERMIT, isolate, require_landlock
from ctvr.sandbox.limits import limit_process

if TYPE_CHECKING:
    from torch import Tensor

BARE = "(the tensor)"  # name of a tensor that is pickled alone
SECONDS = 900  # time limit of the child, enough for a file of gigabytes on a slow disk
_MIB = 2**20
_SPARE = 1024 * _MIB  # address space beyond torch itself and copies of the file
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", PERMIT)
_LONGEST = 200  # maximum number of characters of a reason; longer texts are advice for programmers
# The folder of this package is on the path only while modules are imported, not when the file is opened
_CHILD = (
    "import sys; sys.path.append(sys.argv.pop(1)); from ctvr.methods.backbone.weights import main; "
    "sys.path.pop(); sys.exit(main())"
)
# Files that are often given in place of weights, by their first bytes
_STARTS = {
    b"version https://git-lfs": "is a Git LFS pointer. Download the file itself: git lfs pull",
    b"<": "is a web page, as a failed download leaves one. Download the file again",
    b"\x1f\x8b": "is compressed (gzip). Unpack it",
    b"BZh": "is compressed (bzip2). Unpack it",
    b"\xfd7zXZ": "is compressed (xz). Unpack it",
    b"\x89HDF": "is an HDF5 file. Use a .safetensors or .pt file",
    b"\x93NUMPY": "is a numpy array. Use a .safetensors or .pt file",
}


def read_weights(file: Path, sha256: str) -> dict[str, Tensor]:
    """Read the tensors of a `.safetensors` file or of a pickle.

    Args:
        file: an existing file.
        sha256: 64 hexadecimal digits; required for a pickle, checked if given for safetensors.

    Returns:
        Name -> tensor on the CPU. Nested dictionaries become dotted names. One dictionary around all tensors, as in
        `{"state_dict": {...}, "epoch": 3}`, is removed. A single tensor without a name gets the name BARE.

    Raises:
        ValueError: one line; for a pickle without `sha256`, a file with another digest, a file without weights, or a
            pickle on a kernel without Landlock (`NoLandlock`).
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    wanted = sha256.strip().lower()
    if wanted and (len(wanted) != 64 or set(wanted) - set("0123456789abcdef")):
        raise ValueError(
            f"sha256={sha256!r} is not a SHA-256. Use the 64 hexadecimal digits that `sha256sum {file}` prints."
        )
    if file.suffix != ".safetensors":
        if not wanted:
            raise ValueError(
                f"{file}: is read as a pickle, which can contain a program. Compare its SHA-256 with the one that its "
                "publisher states and set backbone.sha256=DIGEST, or convert the file to .safetensors."
            )
        return _read_pickle(file, wanted)
    if wanted and (found := _digest(file)) != wanted:
        raise ValueError(_describe_other_file(file, found))
    try:
        return dict(load_file(file))
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(_describe_damage(file, reason_of(error))) from None


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_MIB):
            digest.update(chunk)
    return digest.hexdigest()


def _describe_other_file(file: Path, found: str) -> str:
    return f"{file}: its SHA-256 is {found}, not backbone.sha256. Check that it is the intended file."


def _describe_damage(file: Path, reason: str) -> str:
    with file.open("rb") as opened:
        head = opened.read(64)
    is_named_so, start = file.suffix == ".safetensors", head.lstrip()
    if head[8:9] == b"{":  # of .safetensors: 8 bytes of length (any bytes), then JSON
        if not is_named_so:
            return f"{file}: is a .safetensors file with another suffix. Rename it to {file.stem}.safetensors."
        return f"{file}: is damaged ({reason}). Download it again, or use a .safetensors or .pt file."
    if head.startswith(b"PK\x03\x04") and is_named_so:
        return f"{file}: is a file of torch.save with another suffix. Rename it to {file.stem}.pt."
    if not start:
        return f"{file}: is damaged or not a weights file (it is empty). Download it again."
    for known, what in _STARTS.items():
        if start.startswith(known):
            return f"{file}: is damaged or not a weights file (it {what})."
    return f"{file}: is damaged or not a weights file ({reason}). Download it again, or use a .safetensors or .pt file."


def reason_of(error: BaseException) -> str:
    """Return the first line of a library's error without terminal codes, or the error's type if it is too long."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", str(error))
    first = "".join(each for each in (text.strip().splitlines() or [""])[0] if each.isprintable()).strip(" .")
    if not first or len(first) > _LONGEST:
        first = f"{type(error).__name__} while it was read"
    return first


# ------------------------------------------------------------------------------------- in this process


def _read_pickle(file: Path, wanted: str) -> dict[str, Tensor]:
    from safetensors.torch import load

    require_landlock()
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {"OMP_NUM_THREADS": "1", "HOME": os.devnull}
    with tempfile.TemporaryDirectory(prefix="weights-") as folder:
        environment["TMPDIR"] = folder  # the only folder to which the child may write
        out = Path(folder) / "weights.safetensors"
        root = str(Path(__file__).absolute().parents[3])
        command = [sys.executable, "-I", "-c", _CHILD, root, str(file.absolute()), wanted, str(out)]
        # A file, since the child's limit on written bytes applies to it; a pipe could fill the memory of this process
        with tempfile.TemporaryFile() as said:
            try:
                done = subprocess.run(
                    command,
                    env=environment,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.DEVNULL,
                    timeout=SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise ValueError(f"{file}: could not be read within {SECONDS} s. Convert it to .safetensors.") from None
            said.seek(max(0, said.seek(0, os.SEEK_END) - _MIB))
            answer = _answer(said.read().decode(errors="replace"))
        if answer is None:
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
            raise ValueError(f"{file}: the process that read it ended with {how}. Use a .safetensors file.")
        if answer.get("found"):
            raise ValueError(_describe_other_file(file, str(answer["found"])[:64]))
        if "error" in answer:
            raise ValueError(_describe_damage(file, reason_of(ValueError(str(answer["error"])))))
        return dict(load(out.read_bytes()))


def _answer(text: str) -> dict[str, Any] | None:
    lines = text.splitlines()
    with contextlib.suppress(ValueError, IndexError):
        found = json.loads(lines[-1])
        return found if isinstance(found, dict) else None
    return None


# ----------------------------------------------------------------------------------------- in the child


def convert(file: Path, wanted: str, out: Path) -> dict[str, str]:
    """Check the digest of a pickle and write its tensors to `out`; the file is read only once for both.

    Args:
        file: the pickle.
        wanted: the expected SHA-256, in hexadecimal digits.
        out: the safetensors file to write.

    Returns:
        {}, or `found` -> the file's digest if it differs from `wanted`, or `error` -> the reason of a failure.
    """
    content = file.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != wanted:
        return {"found": found}
    from safetensors.torch import save_file

    from ctvr.methods.backbone.inert import read

    try:
        tensors = read(content)
        # clone, because safetensors refuses tensors that share memory
        save_file({name or BARE: value.detach().clone().contiguous() for name, value in tensors.items()}, out)
    except Exception as error:  # any exception that a damaged or hostile file causes in pickle, zipfile and torch
        return {"error": reason_of(error)}
    return {}


def _limit_resources(size: int) -> None:
    """Limit memory, written bytes and CPU time of this process for a file of `size` bytes; call it after imports."""
    limit_process(6 * size + _SPARE, 2 * size + _MIB, SECONDS)


def main() -> int:
    file, wanted, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    isolate([file, Path(__file__).parent], [out.parent])
    try:
        import ctvr.methods.backbone.inert  # noqa: F401 (imported first, so that the limits omit torch's own memory)

        _limit_resources(file.stat().st_size)
        answer = convert(file, wanted, out)
    except (OSError, MemoryError) as error:
        answer = {"error": str(error) or type(error).__name__}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0
