"""The floor of a step counts products and memory-bound operators, and no others."""

import torch

from ctvr.methods.backbone.architectures import TINY
from ctvr.methods.backbone.load import load_backbone
from tools.bench.floor import Recorder, kind_of, measure_floor


def test_operators_are_products_memory_bound_or_neither() -> None:
    kinds = {
        "product": ("mm", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu", "convolution_backward"),
        "memory": ("native_layer_norm", "native_layer_norm_backward", "_softmax_backward_data", "gelu", "add", "add_"),
        "": ("cat", "index", "copy_", "_foreach_add_", "mul", "addcmul_", "view"),
    }
    for kind, names in kinds.items():
        assert {name: kind_of(f"aten::{name}") for name in names} == dict.fromkeys(names, kind)


def test_calls_are_counted_by_their_arguments_and_can_be_repeated() -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    with Recorder() as recorder:
        for _ in range(3):
            (x @ w).relu()
        x[:2] @ w
    assert sorted(recorder.calls.values()) == [1, 3, 3]
    assert sorted(tuple(work().shape) for work in recorder.work.values()) == [(2, 8), (4, 8), (4, 8)]


def test_a_step_has_a_floor() -> None:
    found = measure_floor("clip4clip", load_backbone(TINY, "shipped"), 2)
    assert min(found.memory_bound, found.products, found.step) > 0
    assert found.ratio == found.step / (found.memory_bound + found.products)
