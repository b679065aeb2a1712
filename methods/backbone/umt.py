"""UMT: a video ViT and a BERT that replace CLIP's towers; the ViT's blocks have CLIP's hook points (seams).

Li et al., "Unmasked Teacher: Towards Training-Efficient Video Foundation Models", arXiv:2303.16058, as in the
authors' code (`multi_modality`). All patches of a video attend to one another. In UMT4Clip of TempMe
(arXiv:2409.01156, tables 6 and 7), the ViT encodes each frame by itself. Differences from CLIP's ViT:

    no class token, no LayerNorm before the blocks; LayerNorms have eps 1e-6, activations are the exact GELU
    position embeddings are a fixed sine table over all T P patches, never trained; keys lack a bias
    E = LN(x) (B, N, D);  pooled = LN(mean of the tokens of a frame);  embedding of a frame = W pooled + b

The position embeddings of UMT4Clip's frames are not published. Here each frame has the position embeddings of an image.

Shapes: B videos, T frames, P patches of a frame, N tokens of a group, G groups (B videos, or B T frames), D width, d
joint embedding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.bert import FusionBert, Memory
from ctvr.methods.backbone.blocks import Attention, Block, Seams, TokenState, record, run_blocks
from ctvr.methods.backbone.clip import Clip, VisionTower
from ctvr.methods.backbone.frozen_casts import CastOnceLinear

_EPS = 1e-6
# Prefixes of the weights that only retrieval uses, and question answering does not
OF_RETRIEVAL = ("vision.pool_norm", "vision.proj", "text.proj", "head", "temp")


def sine_positions(
    frames: int, patches: int, width: int, pretrained: int | None = None, device: torch.device | None = None
) -> Tensor:
    """Compute the fixed embeddings of all positions of a video: (T P, D) float32, from angles in float64.

    Args:
        frames: T; 1 for an image, whose table is the first P rows of the table of any video.
        patches: P.
        width: D.
        pretrained: number of frames of a table that is interpolated linearly over time to T frames; if None, the table
            is computed for T frames.
        device: device on which the table is computed, so that it need not be copied.
    """
    own = frames if pretrained is None else pretrained
    place = torch.arange(own * patches, dtype=torch.float64, device=device)[:, None]
    column = torch.arange(width, device=device)
    angle = place / 10000.0 ** (2 * torch.div(column, 2, rounding_mode="floor") / width)
    table = torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()
    if own == frames:
        return table
    by_place = table.unflatten(0, (own, patches)).permute(1, 2, 0)  # (P, D, T0)
    return F.interpolate(by_place, size=frames, mode="linear", align_corners=False).permute(2, 0, 1).flatten(0, 1)


class KeysWithoutBias(Attention):
    """Attention with a bias for queries and values, but not for keys."""

    def __init__(self, width: int, heads: int) -> None:
        nn.Module.__init__(self)
        self.heads = heads
        self.in_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(3 * width, width)))
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))
        self.out = CastOnceLinear(width, width)

    @property
    def in_bias(self) -> Tensor:  # type: ignore[override]
        """Return the bias (3D,) of q, k and v, which is zero for keys.

        A bias of the keys would not change attention, but would change token merging.
        """
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])


class UmtBlock(Block):
    """A block of UMT's ViT with the seams of a CLIP block (blocks.py)."""

    def __init__(self, width: int, heads: int) -> None:
        nn.Module.__init__(self)
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=_EPS), nn.LayerNorm(width, eps=_EPS)
        self.ls_1, self.ls_2 = nn.Identity(), nn.Identity()
        wide, narrow = CastOnceLinear(width, 4 * width), CastOnceLinear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(c_fc=wide, gelu=nn.GELU(), c_proj=narrow))
        self.attn = KeysWithoutBias(width, heads)


class UmtVision(VisionTower):
    """UMT's ViT, with attention over a whole video (`attends="video"`) or over each frame (`"frame"`, UMT4Clip)."""

    is_plain = False
    reducers: tuple[str, ...] = ("none", "tome", "tome_shared", "tempme")

    def __init__(
        self,
        image: int = 224,
        patch: int = 16,
        width: int = 768,
        blocks: int = 12,
        heads: int = 12,
        embed: int = 512,
        attends: Literal["video", "frame"] = "video",
        pretrained_frames: int | None = None,
    ) -> None:
        """Build a tower with random weights; the defaults give UMT-B/16.

        Args:
            image: side of a frame in pixels.
            patch: side of a patch in pixels.
            width: D.
            blocks: number of blocks.
            heads: heads per block.
            embed: d.
            attends: whether attention covers all patches of a "video" or of a "frame".
            pretrained_frames: number of frames whose position embeddings are interpolated to T frames of a video; if
                None, they are computed for T.
        """
        nn.Module.__init__(self)
        self.attends, self.pretrained_frames = attends, pretrained_frames
        self.width, self.heads, self.embed_dim, self.classes = width, heads, embed, 0
        self.num_tokens = (image // patch) ** 2  # P
        self.conv1 = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(UmtBlock(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.pool_norm = nn.LayerNorm(width, eps=_EPS)
        self.proj = nn.Linear(width, embed)
        self.entry, self.takes_features = 0, False

    def embed(self, frames: Tensor) -> tuple[Tensor, TokenState]:
        """Embed frames (B, T, 3, H, W) as tokens of videos (B, T P, D), or of frames (B T, P, D), with their state."""
        batch, num_frames = frames.shape[:2]
        x = self.conv1(frames.flatten(0, 1)).flatten(2).mT  # (B T, P, D)
        apart = self.attends == "frame"
        if not apart:
            x = x.unflatten(0, (batch, num_frames)).flatten(1, 2)
        own = self.pretrained_frames if self.attends == "video" and num_frames > 1 else None
        table = sine_positions(1 if apart else num_frames, self.num_tokens, self.width, own, x.device)
        state = TokenState(batch, num_frames if apart else 1, classes=0, protected=0)
        if not apart:  # the cost of a pass counts the patches of one frame of each group
            state.extra_macs = batch * (num_frames - 1) * self.num_tokens * self.conv1.weight.numel()
        return x + table.to(x), record(state)

    def tokens(
        self, frames: Tensor, seams: Seams | None = None, weighted: bool = True
    ) -> tuple[Tensor, Tensor, TokenState]:
        """Return tokens for fusion E (B, N, D), pooled features for comparison (B, T', D), and the state of the tokens.

        Args:
            frames: (B, T, 3, H, W).
            seams: one entry per block; a reducer may merge the T frames to T' clips.
            weighted: whether a merged token counts once for each of its patches in the mean of a frame or clip.

        Raises:
            ValueError: if tokens are merged while attention covers whole videos, where a merged token may belong to
                several frames.
        """
        x, state = self.embed(frames)
        x = self.norm(run_blocks(self.blocks, x, seams, state, causal=False))  # (G, N, D)
        if self.attends == "video":
            if state.sizes is not None:
                raise ValueError(
                    "tokens can be merged only within frames and clips. Set attends=frame, or reducer.name=none."
                )
            means = x.unflatten(1, (frames.shape[1], -1)).mean(dim=2)
            return x, self.pool_norm(means), state
        means = x.mean(dim=1)
        if state.sizes is not None and weighted:
            sizes = state.sizes.to(x)
            means = (x * sizes).sum(dim=1) / sizes.sum(dim=1)
        means = means.unflatten(0, (state.batch, -1))  # (B, T', D)
        return x.unflatten(0, (state.batch, -1)).flatten(1, 2), self.pool_norm(means), state

    def forward(self, frames: Tensor, seams: Seams | None = None) -> Tensor:
        """Embed each frame or clip: (B, T, 3, H, W) -> (B, T', d), not normalized."""
        found: Tensor = self.proj(self.tokens(frames, seams)[1])
        return found

    def prefix(self, frames: Tensor, blocks: int) -> Tensor:
        raise ValueError("UMT's tower is trained as a whole, so outputs of its leading blocks cannot be stored.")

    def read(self, x: Tensor) -> Tensor:
        raise ValueError("UMT's tower pools patches, so a method must call it as a whole.")


class UmtText(nn.Module):
    """The lower layers of a BERT and a projection, in place of CLIP's text tower."""

    def __init__(self, bert: FusionBert, embed: int) -> None:
        super().__init__()
        self.bert, self.proj = bert, nn.Linear(bert.width, embed)
        self.width, self.context_length = bert.width, bert.context_length

    @staticmethod
    def without_end(tokens: Tensor) -> Tensor:
        """Replace the end mark of captions (B, L) by padding, because UMT reads only [CLS] and words."""
        end = tokens.argmax(dim=1)  # every tokenizer here ends a caption with the largest id
        return tokens.scatter(1, end[:, None], 0)

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Encode captions from `without_end`: word features (B, L, D) and embeddings (B, d), not normalized."""
        words = self.bert.read(tokens)
        return words, self.proj(words[:, 0])

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed captions with an end mark: (B, L) int64 -> (B, d), not normalized."""
        return self.read(self.without_end(tokens))[1]


class Umt(Clip):
    """UMT's two towers, pair-matching head and temperature, in place of CLIP's towers and temperature."""

    vision: UmtVision
    text: UmtText  # type: ignore[assignment]

    def __init__(
        self,
        vision: UmtVision,
        bert: FusionBert,
        tokenize: Callable[[list[str]], Tensor],
        mean: Sequence[float],
        std: Sequence[float],
        image_size: int,
        name: str = "",
    ) -> None:
        nn.Module.__init__(self)
        self.name, self.vision, self.text = name, vision, UmtText(bert, vision.embed_dim)
        self.head = nn.Linear(bert.width, 2)  # logit 1: caption and video belong together
        self.temp = nn.Parameter(torch.tensor(0.07))
        self.tokenize, self.mean, self.std = tokenize, tuple(mean), tuple(std)
        self.embed_dim, self.image_size = vision.embed_dim, image_size
        self.decoder_state: dict[str, Tensor] | None = None  # initial weights of the answer decoder; random if None
        self.no_decoder = ""  # reason why the loaded weights have no decoder
        self.only_answers = False  # weights of a question-answering checkpoint, without the retrieval heads

    @property
    def logit_scale(self) -> Tensor:  # type: ignore[override]
        """Return the logarithm of 1 / temp."""
        return -self.temp.log()

    def match(self, words: Tensor, tokens: Tensor, memory: Memory) -> Tensor:
        """Compute matching logits (B, 2) of pairs of a caption and a video.

        Args:
            words: (B, L, D) word features from `UmtText.read`.
            tokens: (B, L) ids of the captions.
            memory: keys and values of the videos, from `FusionBert.memory`.
        """
        found: Tensor = self.head(self.text.bert.fuse(words, tokens, memory)[:, 0])
        return found


def like(clip: Clip) -> Umt:
    """Build a UMT with random weights and the tokenizer, depths, widths, heads and device of a CLIP.

    The upper quarter of the text layers, at least one, are fusion layers.
    """
    vision, text = clip.vision, clip.text
    patch, layers = int(vision.conv1.weight.shape[-1]), len(text.blocks)
    words = len(text.token_embedding.weight) + 1  # the end mark after captions may add one id
    with vision.conv1.weight.device:
        tower = UmtVision(clip.image_size, patch, vision.width, len(vision.blocks), vision.heads, clip.embed_dim)
        bert = FusionBert(
            text.width,
            layers,
            layers - max(1, layers // 4),
            text.heads,
            4 * text.width,
            words,
            text.context_length,
            vision.width,
        )
        return Umt(tower, bert, clip.tokenize, clip.mean, clip.std, clip.image_size, clip.name)
