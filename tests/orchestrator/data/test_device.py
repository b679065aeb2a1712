"""Set-up of a GPU, and errors where it is not usable. These tests need no GPU."""

import pickle

import numpy as np
import pytest
import torch

from ctvr.orchestrator.data.device import autocast_for, memory_of, numerics_flags, require_gpu, set_determinism, stacked
from ctvr.orchestrator.errors import OutOfMemory
from tests.refusing import refuses

CUDA = torch.device("cuda")


@pytest.fixture
def flags():
    """Restore flags of the process after each test."""
    kept = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept


def test_a_gpu_gets_full_float32_and_errors_where_a_kernel_is_free(flags, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = numerics_flags(CUDA)
    set_determinism(torch.device("cpu"))
    assert numerics_flags(CUDA) == before
    set_determinism(CUDA)
    assert numerics_flags(CUDA) == {**dict.fromkeys(before, False), "deterministic": True}
    assert torch.get_deterministic_debug_mode() == 2  # an error; 1 would warn and leave attention's backward free
    assert not torch.utils.deterministic.fill_uninitialized_memory
    set_determinism(CUDA, is_deterministic=False)
    assert numerics_flags(CUDA) == dict.fromkeys(before, False) != before
    assert numerics_flags(torch.device("cpu")) == {}


def test_frames_for_a_gpu_are_written_to_pinned_memory_once(monkeypatch):
    plain, made = torch.empty, []

    def empty(*size, pin_memory, **more):
        made.append((plain(*size, **more), pin_memory))
        return made[-1][0]

    monkeypatch.setattr(torch, "empty", empty)
    parts = [np.full((2, 3), number, np.uint8) for number in range(4)]
    found = stacked(parts, CUDA)
    assert found is made[0][0]
    assert made[0][1]
    assert found.tolist() == stacked(parts, torch.device("cpu")).tolist() == np.stack(parts).tolist()
    assert len(made) == 1


def test_tf32_is_on_only_during_its_run(flags):
    tf32 = {"cudnn.allow_tf32", "matmul.allow_tf32"}
    for precision in ("tf32", "fp32", "tf32", "bf16"):
        set_determinism(CUDA, precision=precision)
        assert {name for name in tf32 if numerics_flags(CUDA)[name]} == (tf32 if precision == "tf32" else set())


def test_only_bf16_is_an_autocast():
    a = torch.ones(2, 2)
    for precision, dtype in (("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)):
        with autocast_for(precision, "cpu"):
            assert (a @ a).dtype == dtype


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_torch_cannot_use_is_an_error_with_the_nodes_name(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "node7")
    with refuses("--gpus-per-trial", "GPU", "node7"):
        require_gpu()


def test_too_little_memory_is_reported_once_with_the_remedy():
    remedy = "data.batch_size: the memory of .* optim.activation_checkpointing=true"
    with pytest.raises(OutOfMemory, match=remedy) as error, memory_of(CUDA):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")
    again = pickle.loads(pickle.dumps(error.value))
    assert again.is_permanent
    assert "\n" not in str(again)
