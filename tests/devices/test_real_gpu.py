"""Every method and case on a GPU: deterministic kernels, equal repetitions, and the numbers of the CPU.

`make test-gpu` runs it; without a GPU it is skipped. tests/devices/test_devices.py checks the same on a simulated GPU,
which has neither kernels nor memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ctvr.methods.layers.frozen import copied
from ctvr.orchestrator.data.device import Precision, memory_of, set_determinism
from ctvr.orchestrator.errors import OutOfMemory
from ctvr.orchestrator.learning.evaluation.encode_videos import encode_videos
from ctvr.orchestrator.learning.evaluation.tiled_scorer import TiledScorer
from ctvr.orchestrator.method_checks.subject import Subject, make_batch
from tests.devices.cases import CASES, EVERY
from tests.devices.drive import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
    pytest.mark.filterwarnings("ignore"),
]
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
# Cases that draw nothing on the device: the numbers that a GPU draws (initial weights, augmentation) are not a CPU's
DRAW_NOTHING = (
    "camoe, in full",
    "ewc, around an LSTM",
    "clip_vip, interpolated",
    "clip4clip, accumulated",
    "clip4clip, best epoch",
    "clip4clip, missing frames",
)
DEFAULTS: dict[str, dict[str, Any]] = {name: {} for name in EVERY}


@pytest.fixture(autouse=True)
def _former_flags() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def state_of(name: str, device: torch.device, folder: Path, precision: Precision, given: dict[str, Any]) -> Any:
    """Train on the device; return the method's tensors on the CPU and the record of the last task."""
    set_determinism(device, precision=precision)
    loop, _ = run(name, device, folder, precision, **given)
    assert all(parameter.isfinite().all() for parameter in loop.method.parameters())
    state = loop.method.state_dict()
    assert {tensor.device.type for tensor in state.values()} == {device.type}
    return {key: value.cpu() for key, value in state.items()}, loop.record


def differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    return [key for key in a if not torch.equal(a[key], b[key])]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("label", {**DEFAULTS, **CASES})
def test_a_method_repeats_and_goes_on_from_its_commit_bit_for_bit(label, precision, tmp_path):
    name, given = label.partition(",")[0], CASES.get(label, {})
    first, record = state_of(name, GPU, tmp_path / "a", precision, given)
    resumed, again = state_of(name, GPU, tmp_path / "a", precision, given)
    assert again == record
    assert differences(first, resumed) == []
    second, _ = state_of(name, GPU, tmp_path / "b", precision, given)
    assert differences(first, second) == []


@pytest.mark.parametrize("label", DRAW_NOTHING)
def test_a_gpu_learns_what_the_cpu_learns(label, tmp_path):
    name, given = label.partition(",")[0], CASES[label]
    here, _ = state_of(name, CPU, tmp_path / "cpu", "fp32", given)
    there, _ = state_of(name, GPU, tmp_path / "gpu", "fp32", given)
    far = {key: float((here[key].float() - there[key].float()).abs().max()) for key in here if here[key].numel()}
    assert {key: worst for key, worst in far.items() if worst > 5e-4} == {}  # a step is 0.02


def test_the_lstm_of_a_copy_has_its_weights_in_one_piece():
    lstm = copied(torch.nn.LSTM(64, 64, batch_first=True).to(GPU))
    assert len({weight.untyped_storage().data_ptr() for weight in lstm.parameters()}) == 1


def test_too_little_memory_is_one_error_that_names_the_settings(tmp_path):
    _, total = torch.cuda.mem_get_info(GPU)
    with pytest.raises(OutOfMemory, match="optim.activation_checkpointing=true"), memory_of(GPU):
        torch.empty(2 * total, dtype=torch.uint8, device=GPU)


def test_a_process_keeps_to_its_share_of_the_memory():
    _, total = torch.cuda.mem_get_info(GPU)
    torch.cuda.set_per_process_memory_fraction(0.05, GPU)
    try:
        with pytest.raises(OutOfMemory), memory_of(GPU):
            torch.empty(int(0.06 * total), dtype=torch.uint8, device=GPU)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
        torch.cuda.empty_cache()


def test_tf32_is_on_only_where_it_is_asked_for():
    """A product of float32 has 24 bits of precision, one of TF32 has 11."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=generator).to(GPU) for _ in range(2))
    exact = (a.double() @ b.double()).float()
    worst = {}
    for precision in ("fp32", "tf32", "fp32"):
        set_determinism(GPU, precision=precision)  # type: ignore[arg-type]
        worst[precision] = float((a @ b - exact).abs().max())
    assert worst["fp32"] < 2e-4 < 5e-3 < worst["tf32"] if torch.cuda.get_device_capability(GPU) >= (8, 0) else True


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("count", [2, 4, 12])
def test_no_reversed_twin_has_another_score_than_its_clip(count, precision):
    """A mean over frames cannot tell twins apart; kernels must not do so by rounding."""
    set_determinism(GPU, precision=precision)  # type: ignore[arg-type]
    method = Subject.of("clip4clip", {"data.num_frames": count}).make().to(GPU).eval()
    frames = make_batch(100, count, seed=3).frames
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        videos = encode_videos(method, torch.cat([frames, frames.flip(1)]).to(GPU).split(32), 0)
    captions = torch.nn.functional.normalize(torch.randn(50, videos.shape[1]), dim=1)
    scores = TiledScorer(method, [captions], [videos], GPU)(slice(0, 50), slice(0, 200))
    differ = int((scores[:, :100] != scores[:, 100:]).any(dim=0).sum())
    assert differ == 0, f"{differ} of 100 twins have other scores than their clips"
