"""Compiled blocks compute the same as plain ones; a machine that cannot compile reports it in one line."""

import copy
import shutil

import pytest
import torch
from torch import Tensor

from ctvr.methods.backbone import compiled
from ctvr.methods.backbone.blocks import Block, BlockSeams
from ctvr.methods.backbone.clip import Clip, record_tokens
from ctvr.methods.backbone.compiled import CompileFailed, compile_blocks, is_compiled
from tests.methods.conftest import make_small_clip

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="torch compiles for a CPU by a C++ compiler"
)


def step(clip: Clip, frames: Tensor, tokens: Tensor, seams: list[BlockSeams] | None = None) -> list[Tensor]:
    """Return the towers' outputs with and without gradient, and all gradients."""
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
    calls, compiled_block = [], compiled._compile(Block._plain)
    monkeypatch.setattr(compiled, "_compile", lambda function: lambda *given: calls.append(1) or compiled_block(*given))
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


def test_a_machine_without_a_compiler_says_what_to_do(monkeypatch):
    from torch._dynamo.exc import BackendCompilerFailed

    def fail(*arguments: object) -> Tensor:
        raise BackendCompilerFailed("inductor", RuntimeError("No working C++ compiler found"), None)

    monkeypatch.setattr(compiled, "_compile", lambda function: fail)
    with pytest.raises(
        CompileFailed, match=r"compile: torch cannot compile here \(.*No working C\+\+ compiler"
    ) as error:
        compile_blocks(make_small_clip(), torch.device("cpu"))
    assert "Use compile=false, or install a C++ compiler" in str(error.value)
    assert "\n" not in str(error.value)
