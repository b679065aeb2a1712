"""`eot_only` computes the same token as the whole last block."""

from dataclasses import replace

import pytest
import torch

from ctvr.methods.backbone.architectures import TINY
from ctvr.methods.backbone.blocks import BlockSeams, Seams, TokenState
from ctvr.methods.backbone.clip import Clip, TextTower
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.layers.adapter_groups import expert_seams
from ctvr.methods.layers.experts import TaskAwareExperts
from ctvr.methods.layers.reduction.reducers import combine

CAPTIONS = ["a", "a red square moves left of two blue circles", "two dogs"]


@pytest.fixture(scope="module")
def clip() -> Clip:
    return load_backbone(TINY, "shipped").eval()


def routed(text: TextTower) -> list[BlockSeams]:
    """Return experts whose gates differ between captions, in all positions of all blocks."""
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList()
    for _ in text.blocks:
        places = {place: TaskAwareExperts(text.width, text.width, 4, 2.0) for place in ("q", "k", "v", "out")}
        blocks.append(torch.nn.ModuleDict(places))
        for adapter in places.values():
            adapter.grow(3, 2)
            for expert in adapter.experts.B:
                torch.nn.init.normal_(expert, std=0.2)
    return expert_seams(blocks.eval(), torch.randn(text.width), is_routed=True)


def doubled(x: torch.Tensor, out: torch.Tensor, state: TokenState) -> torch.Tensor:
    return 2 * out


def both(text: TextTower, tokens: torch.Tensor, seams: Seams | None, read: list[int]) -> tuple[torch.Tensor, ...]:
    """Compute features without and with all tokens of the last block; `read` gets the token counts of its `mlp`."""

    def watch(module: torch.nn.Module, args: tuple[torch.Tensor]) -> None:
        read.append(args[0].shape[1])

    handle = text.blocks[-1].mlp.register_forward_pre_hook(watch)
    with torch.no_grad():
        short = text(tokens, seams)
    whole = text(tokens, seams).detach()
    handle.remove()
    return short, whole


@pytest.mark.parametrize("seams", ["none", "experts", "mlp"])
def test_one_token_of_the_last_block_is_that_of_the_whole_block(clip: Clip, seams: str) -> None:
    text, tokens, read = clip.text, clip.tokenize(CAPTIONS), []
    acts = {"none": None, "experts": routed(text), "mlp": [BlockSeams(mlp=doubled, by_token=True)] * len(text.blocks)}
    short, whole = both(text, tokens, acts[seams], read)
    longest = int(tokens.argmax(dim=1).max()) + 1
    assert read == [1, longest]
    torch.testing.assert_close(short, whole, rtol=1e-5, atol=1e-5)


def test_a_seam_that_may_read_other_tokens_gets_them(clip: Clip) -> None:
    text, tokens, read = clip.text, clip.tokenize(CAPTIONS), []

    def mean(y: torch.Tensor, out: torch.Tensor, state: TokenState) -> torch.Tensor:
        return out + y.mean(dim=1, keepdim=True)

    for seam in (BlockSeams(mlp=mean), BlockSeams(after=lambda x, state: x + x.mean(dim=1, keepdim=True))):
        short, whole = both(text, tokens, [*[None] * (len(text.blocks) - 1), seam], read)
        assert short.equal(whole)
    assert set(read) == {int(tokens.argmax(dim=1).max()) + 1}


def test_two_plug_ins_are_by_token_if_both_are() -> None:
    one = BlockSeams(mlp=doubled, by_token=True)
    assert combine([one], [one])[0].by_token
    assert not combine([one], [replace(one, by_token=False)])[0].by_token


def test_seams_of_another_tower_are_refused_with_the_number_of_blocks(clip: Clip) -> None:
    depth = len(clip.text.blocks)
    with torch.no_grad(), pytest.raises(ValueError, match=f"for {depth + 1} blocks, but the tower has {depth}"):
        clip.text(clip.tokenize(CAPTIONS), [BlockSeams()] * (depth + 1))
