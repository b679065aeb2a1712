"""CLIP4Clip's sequential similarity headers (Luo et al., arXiv:2104.08860, section 3.2) over a video's frames.

Both add their output to the frames; mean pooling follows (layers/pooling.py).

Shapes: B videos, T frames, d joint embedding.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import TextTower, TokenState, run_blocks


class FrameLSTM(nn.Module):
    """seqLSTM: f + LSTM(f), one layer, one direction. 4 (2 d^2 + 2 d) parameters: 2,101,248 for d = 512.

    The released code also has a table of positions that its LSTM never reads; it is omitted here.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, frames: Tensor) -> Tensor:
        """Map (B, T, d) to (B, T, d), not normalised."""
        # cuDNN's backward pass needs training mode, and EWC requests gradients in evaluation mode
        self.lstm.train(self.training or torch.is_grad_enabled())
        return frames + self.lstm(frames)[0]


class FrameTransformer(nn.Module):
    """seqTransf: f + Transformer(f + positions), its positions and blocks copies of CLIP's text tower.

    With ViT-B/32: 4 blocks of 3,152,384 parameters and 77 positions of 512, 12,648,960 in all. No frame is masked,
    because every video has T frames.

    Args:
        text: tower whose first blocks and positions are copied.
        width: d of the joint embedding.
        layers: number of blocks; all blocks of a shallower text tower.
        eps: epsilon of the copied LayerNorms, 1e-12 in the released code; None: unchanged.

    Raises:
        ValueError: if the text tower is not as wide as the joint embedding.
    """

    def __init__(self, text: TextTower, width: int, layers: int = 4, eps: float | None = None) -> None:
        super().__init__()
        if text.width != width:
            raise ValueError(
                f"seqTransf starts from CLIP's text blocks, {text.width} wide, but the frames' features have {width} "
                "dimensions. Write method.sim_header=seqLSTM, or choose another backbone."
            )
        self.positions = nn.Parameter(text.positional_embedding.detach().clone())  # (context, d)
        self.blocks = nn.ModuleList(copy.deepcopy(block) for block in text.blocks[:layers])
        for module in self.blocks.modules():
            if isinstance(module, nn.LayerNorm) and eps is not None:
                module.eps = eps

    def forward(self, frames: Tensor) -> Tensor:
        """Map (B, T, d) to (B, T, d), not normalised; T at most the number of positions."""
        batch, num_frames, _ = frames.shape
        x = frames + self.positions[:num_frames].to(frames.dtype)
        return frames + run_blocks(self.blocks, x, None, TokenState(batch), causal=False)
