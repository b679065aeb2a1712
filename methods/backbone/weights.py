"""Weights from a pickle that somebody published: read in a bounded child process, and only the file that was meant.

A `.pt` file is a program in the language of pickle. `torch.load(weights_only=True)` runs none of it, but that promise
was broken before (CVE-2025-32434, torch below 2.6). So the user names the file by its SHA-256, and a child process
reads it: without the network and without other files where the system allows that (fence.py), without credentials in
its environment, with limits of memory, CPU time and files. It hands tensors back as safetensors, which cannot hold a
program.

The child runs this file (`python -I weights.py`) and that one, so it imports nothing else of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

BARE = "(the tensor)"  # name of a pickled tensor that stands alone
SECONDS = 900  # a file of gigabytes on a slow disk
_MIB = 2**20
_SPARE = 1024 * _MIB  # address space beyond torch itself and copies of the file
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")


def read_weights(file: Path, sha256: str) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file or of a pickle.

    Args:
        file: exists.
        sha256: 64 hexadecimal digits; needed for a pickle, compared if given for safetensors.

    Returns:
        Name -> tensor on the CPU. Of `{"state_dict": {...}}` and `{"model": {...}}` the inner dictionary;
        a tensor alone is called BARE.

    Raises:
        ValueError: one line; for a pickle without its digest, another file than the digest says, or no weights.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    wanted = sha256.strip().lower()
    if wanted and (len(wanted) != 64 or set(wanted) - set("0123456789abcdef")):
        raise ValueError(
            f"sha256={sha256!r} is no SHA-256: write the 64 hexadecimal digits that `sha256sum {file}` prints."
        )
    if file.suffix != ".safetensors":
        if not wanted:
            raise ValueError(
                f"{file}: is read as a pickle, which can hold a program. Compare its SHA-256 with its publisher's and "
                "write it as backbone.sha256=DIGEST, or convert the file to .safetensors."
            )
        return _read_pickle(file, wanted)
    if wanted and (found := _digest(file)) != wanted:
        raise ValueError(_other_file(file, found))
    try:
        return dict(load_file(file))
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(_damaged(file, error)) from None


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_MIB):
            digest.update(chunk)
    return digest.hexdigest()


def _other_file(file: Path, found: str) -> str:
    return f"{file}: has the SHA-256 {found}, another than backbone.sha256. Is it the file that you mean?"


def _damaged(file: Path, error: BaseException) -> str:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"{file}: damaged or no weights file ({reason[:120]}). Give a .safetensors or .pt file."


# ------------------------------------------------------------------------------------- in this process


def _read_pickle(file: Path, wanted: str) -> dict[str, Tensor]:
    from safetensors.torch import load

    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {"OMP_NUM_THREADS": "1", "HOME": os.devnull}
    with tempfile.TemporaryDirectory(prefix="weights-") as folder:
        out = Path(folder) / "weights.safetensors"
        command = [sys.executable, "-I", __file__, str(file.absolute()), wanted, str(out)]
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"{file}: could not be read within {SECONDS} s. Convert it to .safetensors.") from None
        answer = _answer(done.stdout)
        if answer is None:
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
            raise ValueError(f"{file}: reading it ended with {how}. Give a .safetensors file.")
        if answer.get("found"):
            raise ValueError(_other_file(file, str(answer["found"])[:64]))
        if "error" in answer:
            raise ValueError(_damaged(file, ValueError(str(answer["error"]))))
        return dict(load(out.read_bytes()))


def _answer(text: str) -> dict[str, Any] | None:
    lines = text.splitlines()
    with contextlib.suppress(ValueError, IndexError):
        found = json.loads(lines[-1])
        return found if isinstance(found, dict) else None
    return None


# ----------------------------------------------------------------------------------------- in the child


def convert(file: Path, wanted: str, out: Path) -> dict[str, str]:
    """Read a pickle of tensors and write them to `out`; what is compared and what is read are the same bytes.

    Returns an empty dictionary, or `found` (another digest) or `error`.
    """
    content = file.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != wanted:
        return {"found": found}
    import torch
    from safetensors.torch import save_file

    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or hostile file makes torch say
        return {"error": (str(error).splitlines() or [type(error).__name__])[0]}
    if isinstance(state, torch.Tensor):
        state = {BARE: state}
    if isinstance(state, Mapping):
        state = next((state[name] for name in ("state_dict", "model") if isinstance(state.get(name), Mapping)), state)
    if not isinstance(state, Mapping):
        return {"error": f"it holds a {type(state).__name__}, no dictionary of weights"}
    tensors = {str(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        return {"error": "it holds no tensor"}
    try:  # own memory for each: safetensors refuses tensors that share theirs
        save_file({name: value.detach().clone().contiguous() for name, value in tensors.items()}, out)
    except (RuntimeError, ValueError, OSError) as error:
        return {"error": (str(error).splitlines() or [type(error).__name__])[0]}
    return {}


def _bound(size: int) -> None:
    """Limits of this process, which has imported all it needs; `size` is the file's, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").is_file() else 0
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 2 * size + _MIB,
        resource.RLIMIT_CPU: SECONDS,
        resource.RLIMIT_NOFILE: 256,
    }
    if pages:
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + 6 * size + _SPARE
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (most, most))


def _raise_fences(readable: list[Path], writable: list[Path]) -> None:
    """Those of fence.py, which lies beside this file; where the system refuses one, the limits stand."""
    spec = importlib.util.spec_from_file_location("fence", Path(__file__).with_name("fence.py"))
    assert spec is not None
    assert spec.loader is not None
    fence = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fence)
    fence.leave_files(readable, writable)
    fence.leave_network()


def main() -> int:
    file, wanted, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    _raise_fences([file], [out.parent])
    try:
        import torch  # noqa: F401 (before the limits: what they need is not the file's doing)

        _bound(file.stat().st_size)
        answer = convert(file, wanted, out)
    except (OSError, MemoryError) as error:
        answer = {"error": str(error) or type(error).__name__}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
