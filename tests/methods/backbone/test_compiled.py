"""Compiled blocks compute what plain ones do, and a machine that cannot compile says so in one line."""

import copy
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone import blocks, compiled
from ctvr.methods.backbone.blocks import Block, BlockSeams
from ctvr.methods.backbone.clip import Clip, record_tokens
from ctvr.methods.backbone.compiled import CompileFailed, compile_blocks, is_compiled, run_compiled
from ctvr.methods.base import Task
from ctvr.methods.framefusion_moe import FrameFusionMoE, FrameFusionMoEConfig
from ctvr.methods.layers.experts import drop_unchosen
from tests.methods.conftest import make_batch, make_small_clip

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="torch compiles for a CPU by a C++ compiler"
)


def step(clip: Clip, frames: Tensor, tokens: Tensor, seams: list[BlockSeams] | None = None) -> list[Tensor]:
    """Return the towers' outputs with a gradient, those without, and all gradients."""
    clip.zero_grad()
    with torch.no_grad():
        still = [clip.vision(frames, seams), clip.text(tokens)]
    videos, captions = clip.vision(frames, seams), clip.text(tokens)
    (videos.mean(dim=1) * captions).sum().backward()
    return [
        *still,
        videos.detach(),
        captions.detach(),
        *(p.grad.clone() for p in clip.parameters() if p.grad is not None),
    ]


@needs_compiler
@pytest.mark.slow
def test_compiled_blocks_are_equal_to_plain_ones_with_their_gradients(monkeypatch):
    torch.manual_seed(0)
    clip = make_small_clip()
    size = clip.image_size
    inputs = [
        (torch.randn(batch, 2, 3, size, size), torch.randint(1, 9, (batch, length)))
        for batch, length in ((2, 5), (3, 7))
    ]
    merged = [BlockSeams(after=lambda x, state: 1.5 * x), *[BlockSeams()] * (len(clip.vision.blocks) - 1)]
    plain = [step(clip, *each, seams) for each in inputs for seams in (None, merged)]
    copied = copy.deepcopy(clip)
    compile_blocks(clip, torch.device("cpu"))
    calls, compiled_block = [], compiled._compiled(Block._plain)
    monkeypatch.setattr(
        compiled, "_compiled", lambda function: lambda *given: calls.append(1) or compiled_block(*given)
    )
    found = [step(clip, *each, seams) for each in inputs for seams in (None, merged)]
    for before, after in zip(plain, found, strict=True):
        assert len(before) == len(after)
        for one, other in zip(before, after, strict=True):
            largest = max(1.0, float(one.abs().max()))  # gradients of a sum over tokens are large
            torch.testing.assert_close(other, one, rtol=0, atol=1e-5 * largest)
    blocks = len(clip.vision.blocks)
    passes = 2 * len(inputs) * (2 * blocks - 1 + 2 * len(clip.text.blocks))  # the seam acts in the first block
    assert passes - 2 * 2 * len(inputs) <= len(calls) <= passes  # without gradients a caption's last block is its own
    assert is_compiled(clip.vision)
    assert not is_compiled(copied)
    teacher = copy.deepcopy(clip)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(0.5)
        assert not torch.allclose(teacher.vision(inputs[0][0]), found[0][0], atol=1e-3)  # weights are arguments
    with record_tokens() as states:
        clip.vision(inputs[0][0])
    assert len(states[0].log) == blocks


@needs_compiler
@pytest.mark.slow
def test_compiled_experts_and_fusion_are_equal_to_plain_ones(monkeypatch):
    torch.manual_seed(0)
    plain = FrameFusionMoE(FrameFusionMoEConfig(num_experts=3), make_small_clip())
    for index in range(2):
        plain.begin_task(Task(index, f"task_{index}", 2, (index,), 1))
        plain.on_gallery_stored(plain._task, F.normalize(torch.randn(4, plain.backbone.embed_dim), dim=-1))
    nn.init.normal_(plain.ffa["1"].alpha)
    fast = copy.deepcopy(plain)
    compile_blocks(fast, torch.device("cpu"))
    traced = []
    monkeypatch.setattr(blocks, "run_compiled", lambda *given: traced.append(given[0]) or run_compiled(*given))
    for pairs, seed in ((4, 1), (3, 2), (4, 3)):
        found = []
        for method in (plain, fast):
            torch.manual_seed(seed)  # of the router's noise
            method.zero_grad()
            batch = make_batch(pairs, 2, seed=seed)
            losses = method.losses(batch)
            sum(losses.values()).backward()
            drop_unchosen(method)
            gradients = {name: p.grad for name, p in method.named_parameters()}
            found.append((losses, gradients, method.batch_metrics()))
        (losses, gradients, used), (others, other_gradients, also_used) = found
        torch.testing.assert_close(others, losses, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(also_used, used)
        assert {name for name, each in gradients.items() if each is None} == {
            name for name, each in other_gradients.items() if each is None
        }
        for name, each in gradients.items():
            if each is not None:
                largest = max(1.0, float(each.abs().max()))
                torch.testing.assert_close(other_gradients[name], each, rtol=0, atol=1e-5 * largest)
    depth = len(plain.backbone.text.blocks)
    assert traced.count(Block._with_seams) == 3 * (depth + len(plain.ffa))


def test_a_machine_without_a_compiler_says_what_to_do(monkeypatch):
    from torch._dynamo.exc import BackendCompilerFailed

    def fail(*arguments: object) -> Tensor:
        raise BackendCompilerFailed("inductor", RuntimeError("No working C++ compiler found"), None)

    monkeypatch.setattr(compiled, "_compiled", lambda function: fail)
    with pytest.raises(
        CompileFailed, match=r"compile: torch cannot compile here \(.*No working C\+\+ compiler"
    ) as error:
        compile_blocks(make_small_clip(), torch.device("cpu"))
    assert "Use compile=false, or install a C++ compiler" in str(error.value)
    assert "\n" not in str(error.value)
