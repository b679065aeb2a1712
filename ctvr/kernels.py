"""Selection of CPU kernels, so that results do not depend on the model of the processor.

torch, MKL and oneDNN choose kernels by processor, and kernels differ in rounding. `pin` sets the environment variables
that choose the kernels, in every process that imports `ctvr`, before torch computes:

    CTVR_KERNELS   equal results on                      MKL_CBWR      ATEN_CPU_CAPABILITY   ONEDNN_MAX_CPU_ISA
    avx2           processors of one vendor (default)    AVX2,STRICT   avx2                  AVX2
    portable       every x86-64 processor with AVX2      COMPATIBLE    avx2                  AVX2
    native         processors of one model               -             -                     -

MKL applies `AVX2,STRICT` on Intel processors only. On processors of other vendors it uses another set of AVX2 kernels.
A variable that the user has set is kept. docs/kernels.md states the costs in time. The key of a run contains the
variables (`kernels` in orchestrator/interpreter.py).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import Any

CHOICE = "CTVR_KERNELS"
DEFAULT = "avx2"
_CBWR_OFF = 1
_OTHERS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
LEVELS: dict[str, dict[str, str]] = {
    "avx2": {"MKL_CBWR": "AVX2,STRICT", **_OTHERS},
    "portable": {"MKL_CBWR": "COMPATIBLE", **_OTHERS},
    "native": {},
}


def pin() -> None:
    """Set the variables of the level in `CTVR_KERNELS`; set it to `native` if the variables have no effect here.

    Raises:
        SystemExit: 2, after one line, if `CTVR_KERNELS` is not a level.
    """
    level = os.environ.get(CHOICE) or DEFAULT
    if level not in LEVELS:
        sys.stderr.write(
            f"ctvr: {CHOICE}: must be avx2, portable or native (got {level!r:.80}). Correct the variable.\n"
        )
        raise SystemExit(2)
    missing = {name: value for name, value in LEVELS[level].items() if name not in os.environ}
    if missing and not has_avx2():
        level, missing = "native", {}
    os.environ.update(missing)
    if missing and "torch" in sys.modules and not _act(sys.modules["torch"]):
        level = "native"
        for name in missing:
            del os.environ[name]
    os.environ[CHOICE] = level  # for child processes


def _act(torch: Any) -> bool:
    """Return whether variables that were set after the import of torch have an effect.

    They have an effect if torch has not computed yet, because it reads them when it first computes.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX2":
        return False
    try:
        mkl = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return bool(mkl.mkl_serv_cbwr_get(1) != _CBWR_OFF)  # oneMKL's mkl_cbwr_get(MKL_CBWR_BRANCH)
    except (OSError, AttributeError):  # a build without MKL, or with another one
        return False


def has_avx2() -> bool:
    """Return whether this is an x86-64 processor with AVX2; True for x86-64 if the system does not list features."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return False
    try:
        return " avx2 " in Path("/proc/cpuinfo").read_text(encoding="utf-8").replace("\n", " ")
    except OSError:  # macOS and Windows
        return True
