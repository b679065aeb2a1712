"""Kernels of the CPU are chosen before torch computes, in every process, and named in the key."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ctvr import kernels
from ctvr.orchestrator.interpreter import KERNELS, child_environment
from ctvr.orchestrator.interpreter import kernels as in_force

NEEDS_AVX2 = pytest.mark.skipif(not kernels.has_avx2(), reason="this processor lacks AVX2, so nothing is pinned")
SHOW = "import torch\nprint(torch.backends.cpu.get_cpu_capability(), kernels())"
ROOT = Path(kernels.__file__).parents[1]
OURS = "import ctvr\nfrom ctvr.orchestrator.interpreter import kernels\n"


def python(code, **variables):
    kept = {name: value for name, value in child_environment().items() if name not in {*KERNELS, kernels.CHOICE}}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True)


def test_every_level_sets_the_variables_that_the_key_names():
    assert all(not level or set(level) == set(KERNELS) for level in kernels.LEVELS.values())


@pytest.mark.slow
@NEEDS_AVX2
@pytest.mark.parametrize("before", ["", "import torch\n"])
@pytest.mark.parametrize("level", ["avx2", "portable"])
def test_a_level_is_in_force_also_if_torch_was_imported_before(level, before):
    found = python(before + OURS + SHOW, CTVR_KERNELS=level).stdout
    assert found.startswith(f"AVX2 MKL_CBWR={kernels.LEVELS[level]['MKL_CBWR']} ATEN_CPU_CAPABILITY=avx2 ")
    assert len(found.split()) == (4 if level == "portable" else 5)  # the processor counts except for portable


@pytest.mark.slow
@NEEDS_AVX2
def test_torch_that_has_computed_keeps_its_kernels_and_the_key_says_so():
    used = "import torch\ntorch.ones(3, 3) @ torch.ones(3, 3)\n" + OURS
    more = "\nimport os\nprint(os.environ['CTVR_KERNELS'])"
    capability, *rest = python(used + SHOW + more).stdout.split("\n")[:2]
    assert "MKL_CBWR" not in capability
    assert rest == ["native"]


@pytest.mark.slow
def test_native_pins_nothing_and_a_variable_of_the_user_is_kept():
    assert "=" not in python(OURS + SHOW, CTVR_KERNELS="native").stdout
    assert "MKL_CBWR=AUTO" in python(OURS + SHOW, MKL_CBWR="AUTO").stdout


def test_an_unknown_level_is_refused_in_one_line():
    done = python("import ctvr", CTVR_KERNELS="fast")
    assert done.returncode == 2
    assert done.stderr == ("ctvr: CTVR_KERNELS: must be avx2, portable or native (got 'fast'). Correct the variable.\n")


def test_a_processor_without_avx2_gets_its_own_kernels(monkeypatch):
    for name in (*KERNELS, kernels.CHOICE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kernels, "has_avx2", lambda: False)
    kernels.pin()
    assert os.environ[kernels.CHOICE] == "native"
    assert "=" not in in_force()


def test_no_square_root_of_a_tensor_is_one_of_mkl():
    """Its result on a CPU depends on the processor in every mode. `x.rsqrt().reciprocal()` is torch's own."""
    call = re.compile(r"\.sqrt\(\)|torch\.sqrt\(|_sqrt_?\(|foreach=|fused=False")
    files = [*(ROOT / "methods").rglob("*.py"), *(ROOT / "orchestrator").rglob("*.py")]
    assert [str(file) for file in files if call.search(file.read_text(encoding="utf-8"))] == []


@NEEDS_AVX2
def test_the_processor_counts_unless_results_are_portable(monkeypatch):
    from ctvr.orchestrator import interpreter

    def named(vendor, **variables):
        for name in KERNELS:
            monkeypatch.setenv(name, variables.get(name, ""))
        monkeypatch.setattr(interpreter, "processor_field", lambda field: f"{vendor} {field}")
        return in_force()

    portable, pinned = kernels.LEVELS["portable"], kernels.LEVELS["avx2"]
    assert named("A", **portable) == named("B", **portable) != named("A", **pinned) != named("B", **pinned)
    assert named("A", **pinned).endswith("A vendor_id")
    assert named("A").endswith("A model name")
