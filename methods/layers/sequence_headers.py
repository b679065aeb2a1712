"""CLIP4Clip's sequential similarity headers (Luo et al., arXiv:2104.08860, section 3.2), which mix frame features.

Both headers are residual: they add their output to the frame features. Mean pooling follows (layers/pooling.py).

Shapes: B videos, T frames, d joint embedding.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import TextTower, TokenState, run_blocks


class FrameLSTM(nn.Module):
    """Header seqLSTM: f + LSTM(f), with one forward layer of 4 (2 d^2 + 2 d) parameters, 2,101,248 for d = 512.

    The released code also has a table of position embeddings that its LSTM does not read; the table is omitted here.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, frames: Tensor) -> Tensor:
        """Map frame features (B, T, d) to (B, T, d), not normalized."""
        # cuDNN's backward pass needs training mode, and EWC requests gradients in evaluation mode
        self.lstm.train(self.training or torch.is_grad_enabled())
        return frames + self.lstm(frames)[0]


class FrameTransformer(nn.Module):
    """Header seqTransf: f + Transformer(f + p) with position embeddings p; blocks and p are copied from a text tower.

    For ViT-B/32, 4 blocks of 3,152,384 parameters and 77 position embeddings of width 512 have 12,648,960 parameters.
    No frame is masked, because every video has T frames.

    Args:
        text: tower whose first blocks and position embeddings are copied.
        width: d of the joint embedding.
        layers: number of blocks; if the text tower has fewer, all of its blocks are copied.
        eps: epsilon of the copied LayerNorms, 1e-12 in the released code; if None, it is unchanged.

    Raises:
        ValueError: if the text tower's width differs from that of the joint embedding.
    """

    def __init__(self, text: TextTower, width: int, layers: int = 4, eps: float | None = None) -> None:
        super().__init__()
        if text.width != width:
            raise ValueError(
                f"seqTransf starts from CLIP's text blocks of width {text.width}, but frame features have {width} "
                "dimensions. Set method.sim_header=seqLSTM, or choose another backbone."
            )
        self.positions = nn.Parameter(text.positional_embedding.detach().clone())  # (context, d)
        self.blocks = nn.ModuleList(copy.deepcopy(block) for block in text.blocks[:layers])
        for module in self.blocks.modules():
            if isinstance(module, nn.LayerNorm) and eps is not None:
                module.eps = eps

    def forward(self, frames: Tensor) -> Tensor:
        """Map frame features (B, T, d) to (B, T, d), not normalized; T is at most the tower's context length."""
        batch, num_frames, _ = frames.shape
        x = frames + self.positions[:num_frames].to(frames.dtype)
        return frames + run_blocks(self.blocks, x, None, TokenState(batch), causal=False)
