import torch

from ctvr.methods.backbone.clip import TokenState, record_tokens, run_blocks
from ctvr.methods.layers.reduction.evit import EViT, keep_attended
from ctvr.methods.lora import Lora, LoraConfig
from tests.methods.conftest import reducer_config


def test_unattended_patches_weigh_nothing_and_fusion_trains_attention(small_clip):
    """The selection follows the positions of the patches, and f carries a gradient to the attention that selected
    them.
    """
    reducer, vision = EViT(4, 17, (1,), 0.5), small_clip.vision
    frames, order = torch.randn(1, 2, 3, 32, 32), torch.randperm(16)
    x, state = vision.embed(frames)
    moved = torch.cat([x[:, :1], x[:, 1 + order]], dim=1)
    outs = [
        vision.read(run_blocks(vision.blocks, tokens, reducer.seams(), made, causal=False)[:, 0])
        for tokens, made in ((x, state), (moved, TokenState(1, 2)))
    ]
    torch.testing.assert_close(*outs, rtol=0, atol=1e-5)
    weights = torch.rand(2, 16, requires_grad=True)
    keep_attended(torch.randn(2, 17, 32), weights, 8, 1, fuse=True).square().sum().backward()
    kept = torch.zeros(2, 16, dtype=torch.bool).scatter(1, weights.topk(8).indices, True)
    assert torch.equal(weights.grad == 0, kept)


def test_the_rate_falls_over_the_steps_of_training_alone(small_clip):
    settings = reducer_config("evit", stages=(0,), keep_rate=0.5, anneal_from=1, anneal_steps=2)

    def tokens(method):
        with record_tokens() as states, torch.no_grad():
            method.encode_frames(torch.randn(1, 2, 3, 32, 32))
        return states[0].log[-1][2]

    method = Lora(LoraConfig(reducer=settings), small_clip)
    counts = []
    for step in range(4):
        if step == 2:
            state = method.state_dict()
            method = Lora(LoraConfig(reducer=settings), small_clip)
            method.load_state_dict(state)
        counts.append(tokens(method.train()))
        assert tokens(method.eval()) == 10
        method.after_step()
    assert counts == [17, 17, 14, 10]
    assert "reducer.steps_done" not in Lora(LoraConfig(reducer=reducer_config("evit")), small_clip).state_dict()
