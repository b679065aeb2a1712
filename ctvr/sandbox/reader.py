"""A reader of arrays in a bounded child: it gets one file and hands arrays back as safetensors, which hold no program.

`read_arrays("package.module:function", file, ...)` is for libraries that read files of others and may be taken over or
blown up by them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.sandbox.isolate import isolate
from ctvr.sandbox.limits import limit_process

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROOT = Path(__file__).resolve().parents[2]
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_START = "import sys; sys.path.append(sys.argv.pop(1)); from ctvr.sandbox.reader import main; sys.exit(main())"
_LONGEST = 300  # characters of a reason
_ANSWER = 1 << 16  # bytes of the child's last words that are read


def read_arrays(
    reader: str, file: Path, memory: int, seconds: int = 600, libraries: Sequence[str] = ()
) -> dict[str, NDArray[np.generic]]:
    """Call a reader in a child that sees this file alone, and return its arrays.

    Args:
        reader: `module:function` of ours. It gets the file's path and returns name -> array.
        file: exists.
        memory: bytes that the child may take beyond its libraries; half of them, at most, for the arrays.
        seconds: of processor time and of the clock.
        libraries: modules that the reader imports when it is called: their memory is not the file's.

    Raises:
        ValueError: one line: the reader's own reason, or how the child ended.
    """
    from safetensors.numpy import load_file

    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HOME": os.devnull}
    request = {"reader": reader, "file": str(file.absolute()), "memory": memory, "seconds": seconds}
    with tempfile.TemporaryDirectory(prefix="arrays-") as folder, tempfile.TemporaryFile() as said:
        words = [str(_ROOT), json.dumps({**request, "out": f"{folder}/arrays", "libraries": [*libraries]})]
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _START, *words],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"{file}: could not be read within {seconds} s.") from None
        said.seek(max(0, said.seek(0, os.SEEK_END) - _ANSWER))
        error = _error(said.read().decode(errors="replace"), done.returncode)
        if error:
            raise ValueError(f"{file}: {error}.")
        try:
            return dict(load_file(f"{folder}/arrays"))
        except Exception as broken:  # whatever the child has written instead
            raise ValueError(f"{file}: reading it gave no arrays ({type(broken).__name__}).") from None


def _error(text: str, status: int) -> str:
    """Return why a child has read nothing, or an empty string."""
    with contextlib.suppress(ValueError, IndexError, KeyError):  # it ended before, or answered with something else
        answer = json.loads(text.splitlines()[-1])
        if status == 0 and isinstance(answer, dict):
            reason = "".join(each for each in str(answer["error"]) if each.isprintable() or each == "\n")
            return reason.strip().partition("\n")[0][:_LONGEST].rstrip(" .")
    return f"reading it ended with {f'signal {-status}' if status < 0 else f'status {status}'}"


# ------------------------------------------------------------------------------------------- in the child


def main() -> int:
    """Isolate and limit this process, call the reader, write its arrays."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    file, out = Path(request["file"]), Path(request["out"])
    isolate([file], [out.parent])
    try:
        from safetensors.numpy import save_file

        module, _, function = request["reader"].partition(":")
        read = getattr(importlib.import_module(module), function)
        for name in request["libraries"]:
            importlib.import_module(name)
        limit_process(request["memory"], request["memory"] // 2, request["seconds"])
        save_file(dict(read(file)), out)
        error = ""
    except MemoryError:
        error = f"needs more than {request['memory'] >> 20} MiB of memory"
    except Exception as reason:  # whatever a reader says of a damaged or hostile file
        error = str(reason) or type(reason).__name__
    sys.stdout.write("\n" + json.dumps({"error": error}) + "\n")
    return 0
