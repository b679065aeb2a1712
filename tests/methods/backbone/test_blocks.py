"""Seams change nothing by default, are called in order and get the right arguments; passes can be recorded."""

import pytest
import torch

from ctvr.methods.backbone.blocks import BlockSeams, TokenState, record, record_tokens, run_blocks
from tests.methods.conftest import make_batch


def close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def spies(calls):
    """Return seams that change nothing and record that they were called."""

    def keep(place, position):
        def seam(*args):
            calls.append((place, args[-1].layer))
            return args[position]

        return seam

    positions = {"before": 0, "q": 1, "k": 1, "v": 1, "out": 1, "beside": 1, "between": 0, "mlp": 1, "after": 0}
    return BlockSeams(**{place: keep(place, position) for place, position in positions.items()})


@pytest.mark.parametrize("tower", ["vision", "text"])
def test_seams_that_change_nothing_change_nothing(small_clip, batch, tower):
    given = batch.frames if tower == "vision" else batch.tokens
    run, calls = getattr(small_clip, tower), []
    expected = run(given)
    for seams in ([None] * 4, [BlockSeams()] * 4):
        assert torch.equal(run(given, seams), expected)
    close(run(given, [spies(calls)] * 4), expected, 1e-6)  # the last block also computes tokens that are not read
    order = ["before", "q", "k", "v", "out", "beside", "between", "mlp", "after"]
    assert calls == [(place, layer) for layer in range(4) for place in order]


@pytest.mark.parametrize("place", ["before", "q", "k", "v", "out", "beside", "between", "mlp", "after"])
def test_every_seam_acts(small_clip, batch, place):
    def seam(*args):
        return args[0 if place in {"before", "between", "after"} else 1] * 1.5

    seams = [None, BlockSeams(**{place: seam}), None, None]
    assert not torch.allclose(small_clip.vision(batch.frames, seams), small_clip.vision(batch.frames), atol=1e-4)
    assert not torch.allclose(small_clip.text(batch.tokens, seams), small_clip.text(batch.tokens), atol=1e-4)


def test_projection_seams_see_what_the_projection_saw(small_clip, batch):
    block = small_clip.vision.blocks[0].attn
    seen = {}

    def spy(name):
        def seam(x, projected, state):
            seen[name] = (x, projected)
            return projected

        return seam

    small_clip.vision(batch.frames, [BlockSeams(q=spy("q"), v=spy("v"), out=spy("out")), None, None, None])
    weight, bias = block.in_weight, block.in_bias
    close(seen["q"][1], seen["q"][0] @ weight[:32].mT + bias[:32])
    close(seen["v"][1], seen["v"][0] @ weight[64:].mT + bias[64:])
    close(seen["out"][1], block.out(seen["out"][0]))


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_stored_tokens_enter_at_the_block_where_they_were_taken(small_clip, batch, blocks):
    seams = [None] * 4 if blocks == 4 else [None] * blocks + [BlockSeams(after=lambda x, state: 2 * x)] * (4 - blocks)
    vision = small_clip.vision
    expected = vision(batch.frames, seams)
    tokens = vision.prefix(batch.frames, blocks)
    assert tokens.shape == (*batch.frames.shape[:2], 1 if blocks == 4 else vision.num_tokens, vision.width)
    vision.entry = blocks
    assert torch.equal(vision(tokens, seams), expected)
    assert torch.equal(vision(batch.frames, seams), expected)  # frames still enter at the bottom
    each = torch.cat([vision.prefix(video[None], blocks) for video in batch.frames])
    torch.testing.assert_close(vision(each, seams), expected, atol=1e-5, rtol=1e-5)  # kernels may differ by size


def test_a_seam_below_stored_tokens_is_refused(small_clip, batch):
    vision = small_clip.vision
    vision.entry = 2
    tokens = vision.prefix(batch.frames, 2)
    seams = [BlockSeams(), BlockSeams(after=lambda x, state: x), None, None]
    with pytest.raises(ValueError, match="a hook acts in block 1, but stored tokens enter at block 2"):
        vision(tokens, seams)


def test_two_interleaved_forwards_do_not_interfere(small_clip):
    outer, inner = make_batch(seed=1), make_batch(pairs=3, frames=2, seed=2)
    expected = small_clip.vision(outer.frames), small_clip.text(inner.tokens), small_clip.vision(inner.frames)
    found = []

    def run_another(x, state):
        before = (state.batch, state.frames, state.layer, len(state.log))
        found.append((small_clip.text(inner.tokens), small_clip.vision(inner.frames)))
        assert (state.batch, state.frames, state.layer, len(state.log)) == before
        return x

    close(small_clip.vision(outer.frames, [BlockSeams(after=run_another)] * 3 + [None]), expected[0], 0)
    for text, video in found:
        close(text, expected[1], 0)
        close(video, expected[2], 0)


def test_between_gets_the_keys_and_the_class_row_that_it_requests(small_clip, batch):
    seen = []

    def between(x, attended, state):
        seen.append(attended)
        return x

    small_clip.vision(
        batch.frames, [None, BlockSeams(between=between, wants_keys=True, wants_class_row=True), None, None]
    )
    keys, row = seen[0].keys, seen[0].class_row
    assert keys.shape == (18, 17, 8)
    assert row.shape == (18, 17)
    close(row.sum(dim=1), torch.ones(18))
    small_clip.vision(batch.frames, [BlockSeams(between=between)] + [None] * 3)
    assert seen[1].keys is None
    assert seen[1].class_row is None


def test_a_token_of_size_two_counts_as_two_equal_tokens(small_clip):
    attention = small_clip.vision.blocks[0].attn
    y = torch.randn(2, 5, 32)
    doubled = torch.cat([y, y[:, -1:]], dim=1)
    sizes = torch.ones(2, 5, 1)
    sizes[:, -1] = 2
    seams = BlockSeams(wants_class_row=True)
    weighted, one = attention(y, seams, TokenState(2, sizes=sizes))
    plain, two = attention(doubled, seams, TokenState(2))
    close(weighted, plain[:, :5])
    close(one.class_row[:, 4], two.class_row[:, 4:].sum(dim=1))


@pytest.mark.parametrize("read", [1, 2])
@pytest.mark.parametrize("has_sizes", [False, True])
@pytest.mark.parametrize("place", [None, "qkv", "k"])
def test_the_last_block_makes_what_is_read_and_no_more(small_clip, batch, read, has_sizes, place):
    """Tokens and gradients are those of the whole block, also after merging, for clips with several class tokens, and
    with a seam before it.
    """

    def before(x, state):
        state.classes = read  # known only when the tokens come there
        return 2 * x

    last = BlockSeams(before=before, **({place: lambda y, projected, state: 2 * projected} if place else {}))
    vision, found, ran = small_clip.vision, [], []
    small_clip.requires_grad_(True)
    hooks = [block.mlp.register_forward_hook(lambda _, given, out: ran.append(out.shape[1])) for block in vision.blocks]
    for classes_only in (False, True):
        vision.zero_grad()
        x, state = vision.embed(batch.frames)
        state.sizes = 1 + torch.arange(x.shape[1]).expand(len(x), -1)[..., None] if has_sizes else None
        x.retain_grad()
        tokens = run_blocks(vision.blocks, x, [None, None, None, last], state, False, classes_only)
        assert tokens.shape[1] == (read if classes_only else 17)
        tokens = tokens[:, :read]
        tokens.square().sum().backward()
        found.append((tokens.detach(), x.grad, *(p.grad for p in vision.blocks.parameters())))
        assert state.log == [(3, 17, 17)] * 4  # as papers count
    for hook in hooks:
        hook.remove()
    for whole, cut in zip(*found, strict=True):
        close(cut, whole, 2e-6 * float(1 + whole.abs().max()))
    assert ran == [17] * 7 + [read]


@pytest.mark.parametrize("place", ["q", "k", "v", "qkv", "out", "beside", "between", "mlp", "after"])
def test_a_seam_in_the_last_block_gets_every_token(small_clip, batch, place):
    shapes = []

    def seam(*args):
        shapes.append(args[0].shape[1])
        return args[0] if place in ("between", "after") else args[1]

    small_clip.vision(batch.frames, [None] * 3 + [BlockSeams(**{place: seam})])
    assert shapes == [17]


def test_a_tower_of_a_methods_own_can_be_watched_too(small_clip, batch):
    quiet = record(TokenState(1))
    with record_tokens() as outer:
        small_clip.vision(batch.frames)
        with record_tokens() as inner:
            own = record(TokenState(2))
        small_clip.vision(batch.frames[:2])
    after = record(TokenState(3))
    assert [state.batch for state in outer] == [6, 2]
    assert inner == [own]
    assert not {id(quiet), id(after)} & {id(state) for state in outer}
