"""Every method on a simulated GPU: the devices and types of its tensors, and the number of host waits.

`budget.json` holds the waits of the last task in three phases. The first is its two steps, which replay and distil
where the method does; one of them reads the epoch's losses. The second is `end_task`. The third is the encoding and
scoring of the search that follows, without the copies that the evaluation makes of every block. If you add a wait, the
test names its line. If you remove one, write the smaller number with `python -m tests.devices --write`; without
`--write` the command prints the table. fake_cuda.py lists what a simulated GPU cannot detect.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.devices.cases import BUDGET, CASES, EVERY
from tests.devices.drive import STEPS, Report, bench, examine
from tests.devices.fake_cuda import Trespass
from tools.bench.gpu import to_markdown

QUICK = ("clip4clip", "framefusion_moe", "er_ring")
# What torch's documentation of `use_deterministic_algorithms` says CUDA adds up in no fixed order, whatever is asked
UNREPEATABLE = (
    "avg_pool3d_backward",
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d_backward",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "max_unpool2d",
    "max_unpool3d",
    "upsample_linear1d_backward",
    "upsample_bilinear2d_backward",
    "_upsample_bilinear2d_aa_backward",
    "upsample_bicubic2d_backward",
    "_upsample_bicubic2d_aa_backward",
    "upsample_trilinear3d_backward",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "nll_loss2d_forward",
    "_ctc_loss_backward",
    "embedding_bag_dense_backward",
    "put_",
    "put",
    "histc",
    "bincount",
    "median.dim",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "scatter_reduce",
)


@pytest.fixture(scope="module")
def child() -> Iterator[ProcessPoolExecutor]:
    """Return a child process: torch keeps the simulated device until its process ends."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module")
def on_gpu(child: ProcessPoolExecutor) -> Callable[..., Report]:
    """Return the result of `examine` in a child."""
    return lambda *given, **named: child.submit(examine, *given, **named).result()


def free(report: Report) -> list[str]:
    """Return the operators that would not give the same numbers twice."""
    names = {operator.removeprefix("aten.") for operator in report.operators}
    return sorted(n for n in names if any(n == bad or n.startswith(f"{bad}.") for bad in UNREPEATABLE))


def check(report: Report, label: str) -> None:
    assert report.moved == [], "a resumed run differs from an unbroken one"
    assert free(report) == []
    assert {"aten.addcmul_.default", "aten.addcdiv_.default"}.isdisjoint(report.operators), "a kernel for each tensor"
    assert report.waits == BUDGET[label], f"the host waits at {report.places}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in EVERY])
def test_method_stays_on_its_device_within_its_wait_budget(name, on_gpu):
    check(on_gpu(name, "bf16"), name)


def test_no_method_waits_more_than_twice_a_step():
    assert set(BUDGET) == {*EVERY, *CASES}
    assert {name: BUDGET[name] for name in BUDGET if BUDGET[name]["steps"] > 2 * STEPS} == {}


@pytest.mark.slow
@pytest.mark.parametrize("label", CASES)
def test_a_pretended_gpu_learns_what_the_cpu_learns(label, on_gpu):
    report = on_gpu(label.partition(",")[0], "fp32", beside_cpu=True, **CASES[label])
    assert report.far == []
    check(report, label)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("a target on the CPU", "a CPU tensor .* beside tensors of cuda:0"),
        ("a generator of the CPU", "a CPU generator draws for the device"),
        ("a dropped float()", "same dtype"),
    ],
)
def test_the_pretended_gpu_refuses_what_a_gpu_refuses(fault, message, on_gpu):
    with pytest.raises((Trespass, RuntimeError), match=message):
        on_gpu("clip4clip", "bf16", plant=fault)


def test_a_wait_and_an_operator_that_does_not_repeat_are_seen(on_gpu):
    report = on_gpu("clip4clip", "bf16", plant="an extra item()")
    assert report.waits["steps"] == BUDGET["clip4clip"]["steps"] + STEPS
    assert free(report) == []
    report = on_gpu("clip4clip", "bf16", plant="an operator that adds in any order")
    assert report.waits == BUDGET["clip4clip"]
    assert free(report) == ["upsample_linear1d_backward.default"]


@pytest.mark.slow
def test_gpu_measurements_time_the_loop_and_name_lines_that_wait(child):
    row = child.submit(bench, "framefusion_moe").result()
    assert min(row.step_ms, row.videos_per_second, row.encoded_per_second) > 0
    places = {place.partition(":")[0]: count for place, count in row.waits.items()}
    assert places == {"methods/layers/experts.py": STEPS, "orchestrator/learning/training/loss_monitor.py": 1}
    assert f"| {(STEPS + 1) / STEPS:.2f} |" in to_markdown([row])
    assert f"- framefusion_moe, bf16: {STEPS} times at methods/layers/experts.py:" in to_markdown([row])
