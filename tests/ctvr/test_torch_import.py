"""torch and its dependencies load no library from the current folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ctvr.orchestrator.interpreter import child_environment

SAY = """
import os
print(os.getcwd(), flush=True)
"""
PROGRAM = """
import os
import ctvr
import {module}
print(os.getcwd())
"""
LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void) { close(open(RAN, O_CREAT | O_WRONLY, 0644)); }
"""


def in_folder(folder: Path, program: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [path, environment["PYTHONPATH"]]))
    return subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("module", ["torch", "torch.nn"])
def test_torch_is_imported_in_the_root_folder_which_is_left_again(module, tmp_path):
    (tmp_path / "libraries" / "torch").mkdir(parents=True)
    (tmp_path / "libraries" / "torch" / "__init__.py").write_text(SAY)
    (tmp_path / "libraries" / "torch" / "nn.py").touch()
    done = in_folder(tmp_path, PROGRAM.format(module=module), str(tmp_path / "libraries"))
    assert done.stdout.split() == ["/", str(tmp_path)], done.stderr


def test_the_working_folder_is_restored_after_a_failed_import(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no libtorch')")
    program = "import os, ctvr\ntry:\n    import torch\nexcept ImportError as error:\n    print(error, os.getcwd())"
    done = in_folder(tmp_path, program, str(tmp_path))
    assert done.stdout == f"no libtorch {tmp_path}\n", done.stderr


def test_an_import_pauses_garbage_collection(tmp_path):
    (tmp_path / "torch.py").write_text("import gc\nprint(gc.isenabled())")
    (tmp_path / "open_clip.py").write_text("import torch, gc\nprint(gc.isenabled())")
    done = in_folder(tmp_path, "import gc, ctvr, open_clip\nprint(gc.isenabled())", str(tmp_path))
    assert done.stdout.split() == ["False", "False", "True"], done.stderr


@pytest.mark.slow
def test_a_library_in_the_current_folder_is_not_loaded(tmp_path):
    if not (compiler := shutil.which("cc")):
        pytest.skip("a library is made by a C compiler")
    (tmp_path / "a.c").write_text(LIBRARY.replace("RAN", f'"{tmp_path}/ran"'))
    library = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "a.c"], check=True)
    assert in_folder(tmp_path, "import ctypes; ctypes.CDLL('./libcuda.so.1')").returncode == 0
    (tmp_path / "ran").unlink()
    done = in_folder(tmp_path, PROGRAM.format(module="torch"))
    assert done.stdout == f"{tmp_path}\n", done.stderr
    assert not (tmp_path / "ran").exists()


def test_no_folder_is_searched_by_a_relative_name(tmp_path):
    """An editable installation with a namespace package adds a relative name, below which libraries and metadata are
    searched.
    """
    done = in_folder(tmp_path, "import os, sys; print([entry for entry in sys.path if not os.path.isabs(entry)])")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.slow
def test_torch_dynamo_is_imported_when_a_function_needs_it_and_not_with_open_clip(tmp_path):
    program = """if True:
        import sys, ctvr, open_clip, timm, torchvision
        assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
        from timm.layers import disable_compiler
        from torchvision.ops.roi_align import is_compile_supported
        assert is_compile_supported("cpu") is True
        import torch._dynamo
        assert is_compile_supported is not torch._dynamo.utils.is_compile_supported
        assert disable_compiler(lambda: torch.compiler.is_compiling())() is False
        assert torch.compiler.disable.__module__ == "torch.compiler"
    """
    done = in_folder(tmp_path, program)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("has_home", [True, False])
def test_the_compilers_cache_is_not_made_in_the_current_folder(tmp_path, has_home):
    program = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc', '.']\n"
    program += "import ctvr, open_clip, torch._inductor.codecache\n"
    program += "from torch._inductor.runtime.cache_dir_utils import cache_dir; print(cache_dir())"
    home = tmp_path / "home" if has_home else Path("/proc/none")
    (tmp_path / "here").mkdir()
    (tmp_path / "home").mkdir()
    environment = {**child_environment(), "HOME": str(home), "XDG_CACHE_HOME": ""}
    for name in ("CTVR_CACHE", "TORCHINDUCTOR_CACHE_DIR"):
        environment.pop(name, None)
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path / "here", env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(home / ".cache/ctvr/torchinductor") if has_home else sys.prefix], (
        done.stderr
    )
    assert not list((tmp_path / "here").iterdir())
