"""A step starts no more kernels than docs/gpu.md says, which `make bench ARGS="--only kernels"` counted."""

import re
from pathlib import Path

import pytest
import torch

from tools.bench.kernels import COUNTED, KernelCounter, count_kernels

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
QUICK = ("framefusion_moe", "structalign", "tempme", "bmu_moco")


def documented(name: str) -> dict[str, int]:
    """Return the kernels of a method's step that the page states, by precision."""
    cells = re.findall(rf"^\| `{name}` \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    (numbers,) = ([int(cell.replace(",", "")) for cell in row.split("|")] for row in cells if row.count("|") == 7)
    return {"fp32": numbers[3], "bf16": numbers[7]}


def test_views_and_allocations_are_no_kernels() -> None:
    x = torch.randn(2, 3)
    with KernelCounter() as counter:
        (x.mT.unsqueeze(0).expand(4, 3, 2) * torch.empty(2)).sum()
    assert counter.kernels == 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in COUNTED])
def test_a_step_starts_no_more_kernels_than_the_page_says(name, precision) -> None:
    assert count_kernels(name, precision).total <= documented(name)[precision]
