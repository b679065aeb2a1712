"""VoP: frozen CLIP with prompts for frames, for their content, for videos and for captions in every block.

Huang et al., "VoP: Text-Video Co-Operative Prompt Tuning for Cross-Modal Retrieval", CVPR 2023. Row VoP^F+C of TempMe
(arXiv:2409.01156, tables 2, 3, 4 and 17). Only inference code of the base model is public (modelscope):

    frame    = [class, P_k prompts, patches] in block k, instead of the prompts of block k - 1; those of block 0 pass
               ln_pre
    caption  = [start, a_k prefix, words, padding, b_k suffix, last position], 77 tokens, in block k; words are moved by
               a positions, and the prompts of block 0 get position embeddings
    v        = mean over t of unit(f_t), not normalized again;  q = unit(text);  S = q v^T
    loss     = InfoNCE of S exp(logit_scale), mean of both directions, logit_scale frozen (training code is not public)

The release reads the output a + b positions after the original position of the end-of-text token, but the token has
moved by only a positions (`readout=past_end`). So it reads a padding token, which attends to the whole caption and four
padding tokens. In a caption without padding it reads the end of text; only there do suffix prompts affect the result.

The code of F and C is not public. The following is our interpretation of the paper's abstract and of TempMe's counts.
C (`prompts=context`): a BiLSTM reads the class tokens that enter a block, and a linear layer computes the prompts of
each frame. All of these blocks share both. Prompts are inserted unchanged, also in block 0.
F (`video_blocks`): in the last blocks the tokens of all frames and P prompts of the video attend to each other.
Preset `fc` has 4 prompts, 4 blocks of kind F and no suffix. It has 14,208,000 weights; TempMe prints 14.10 M, which a
usual LSTM does not give. It costs 57.85 GMACs, plus 1.36 GMACs of the BiLSTM, which we also count. TempMe omits the
BiLSTM, and prints 58.0.

Shapes: B videos or captions, T frames, K blocks, P prompts, N tokens of a frame, L tokens of a caption, D, E widths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip, TokenState
from ctvr.methods.base import Capabilities, Method, Override, ParamGroup, l2_normalize
from ctvr.methods.families.tempme_family import PAPER
from ctvr.methods.layers.deep_prompts import Seam, drop_prompts, insert_prompts
from ctvr.methods.layers.pooling import frame_mean
from ctvr.methods.layers.replay.mixup import last_end
from ctvr.methods.settings import require, setting


@dataclass(frozen=True, kw_only=True)
class VoPConfig:
    """Settings of VoP, with ranges in search_spaces/."""

    UNPUBLISHED = ("optim.weight_decay",)
    ROW_UNPUBLISHED = {
        "vop_fc": (
            *("method.lr", "method.prompts", "method.num_prompts", "method.suffix", "method.video_blocks"),
            *("method.lstm_width", "method.readout", "optim.weight_decay"),
        )
    }

    lr: float = setting(6e-4, doc="learning rate of all new weights, as in TempMe", unpublished=True, part="recipe")
    prompts: Literal["fixed", "context"] = setting(
        "fixed",
        doc="prompts of frames. fixed: learned, equal for all videos; context: computed from the video's frames (C)",
    )
    num_prompts: int = setting(8, doc="number of prompts P of a frame, and of a video in `video_blocks`")
    prefix: int = setting(4, doc="number of prefix tokens a, at most an eighth of the text length")
    suffix: int = setting(4, doc="number of suffix tokens b, at most an eighth of the text length")
    video_blocks: int = setting(0, doc="number of last blocks in which all frames of a video attend to each other (F)")
    lstm_width: int = setting(768, doc="width of each LSTM direction, with prompts=context")
    readout: Literal["end", "past_end"] = setting(
        "end",
        doc="caption token whose output is the feature. end: the end-of-text token; past_end: a padding token, as in "
        "the released code",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", hint="Use <lr>=0 to train nothing.")
        require(self, ">= 1", "num_prompts", hint="Use 8.")
        require(self, ">= 1", "lstm_width", hint="Use 768.")
        require(self, ">= 0", "prefix", "suffix", "video_blocks", hint="Use 0 for none.")


class ContextPrompts(nn.Module):
    """BiLSTM and linear layer that compute prompts of each frame from the class tokens of all frames of its video."""

    def __init__(self, width: int, count: int, hidden: int) -> None:
        super().__init__()
        self.count = count
        self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, count * width)

    def forward(self, classes: Tensor) -> Tensor:
        """Map class tokens (B, T, D) to prompts (B, T, P, D)."""
        # cuDNN's backward pass of an LSTM needs training mode, which changes only dropout, and the LSTM has none
        self.lstm.train(self.training or torch.is_grad_enabled())
        made: Tensor = self.out(self.lstm(classes)[0])
        return made.unflatten(-1, (self.count, -1))

    def macs(self, frames: int) -> int:
        """Return the multiply-adds for `frames` frames."""
        hidden, width = self.lstm.hidden_size, self.lstm.input_size
        return frames * (8 * hidden * (width + hidden) + 2 * hidden * self.count * width)


class VoP(Method):
    """Frozen CLIP with prompts in every block of both towers."""

    Config = VoPConfig
    PRESETS = {
        "paper": PAPER,  # the training of TempMe's tables
        "released": Override({"method.readout": "past_end"}),  # as in modelscope's code, which is for inference only
        "shapes": {"method.lr": 2e-5},  # with optim.lr_scale=50: 1e-3
        "fc": Override(
            {"method.prompts": "context", "method.num_prompts": 4, "method.suffix": 0, "method.video_blocks": 4}
        ),  # the row `vop_fc`
    }

    @classmethod
    def capabilities(cls, config: VoPConfig) -> Capabilities:
        return Capabilities(uses_all_parameters=True)

    def __init__(self, config: VoPConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        vision, text = backbone.vision, backbone.text
        most, depth = text.context_length // 8, len(vision.blocks)
        self.around = min(config.prefix, most), min(config.suffix, most)  # a, b
        self.columns = text.context_length - sum(self.around)  # positions left for a caption between its prompts
        self.first = depth - min(config.video_blocks, depth)  # index of the first block of whole videos

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(0.02 * torch.randn(shape))

        is_fixed = config.prompts == "fixed"
        self.frame = draw(self.first if is_fixed else 0, config.num_prompts, vision.width)
        self.video = draw(depth - self.first, config.num_prompts, vision.width)
        self.text = draw(len(text.blocks), sum(self.around), text.width)
        self.context = None
        if not is_fixed and self.first:
            self.context = ContextPrompts(vision.width, config.num_prompts, config.lstm_width)

    def param_groups(self) -> list[ParamGroup]:
        added = [p for name, p in self.named_parameters() if not name.startswith("backbone.") and p.numel()]
        return [ParamGroup(name="prompts", params=added, lr=self.config.lr)] if added else []

    # ----------------------------------------------------------------------------------------- videos

    def encode_video(self, frames: Tensor) -> Tensor:
        return frame_mean(l2_normalize(self.encode_frames(frames)))

    def encode_frames(self, frames: Tensor) -> Tensor:
        """Encode each frame: (B, T, 3, H, W) -> (B, T, d), not normalized."""
        vision, count = self.backbone.vision, self.config.num_prompts
        seams = []
        for block in range(self.first):
            before: Seam = self.of_context
            if self.context is None:
                before = insert_prompts(self.frame[block] if block else vision.ln_pre(self.frame[0]))
            seams.append(BlockSeams(before=before, after=drop_prompts(count)))
        for block, prompts in enumerate(self.video):
            last = block == len(self.video) - 1
            after = self._split_frames if last else None
            seams.append(BlockSeams(before=partial(_prepend_prompts, prompts, block == 0), after=after))
        return vision(frames, seams)

    def of_context(self, x: Tensor, state: TokenState) -> Tensor:
        """Insert prompts into frames x (B*T, N, D) -> (B*T, N + P, D), computed from the class tokens of each video."""
        assert self.context is not None
        state.extra_macs += self.context.macs(len(x))
        prompts = self.context(x[:, 0].unflatten(0, (state.batch, state.frames)))
        return insert_prompts(prompts.flatten(0, 1))(x, state)

    def _split_frames(self, x: Tensor, state: TokenState) -> Tensor:
        """Split videos (B, P + T*N, D) into their frames (B*T, N, D)."""
        return x[:, self.config.num_prompts :].unflatten(1, (state.frames, -1)).flatten(0, 1)

    # ----------------------------------------------------------------------------------------- captions

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        befores = [partial(self._replace_prompts, prompts) for prompts in self.text]
        seams = [BlockSeams(before=before) for before in befores]
        seams[0] = BlockSeams(before=self.placed)
        last = partial(self.taken_back, tokens.shape[1])
        seams[-1] = BlockSeams(before=seams[-1].before, after=last)
        return l2_normalize(self.backbone.text(tokens, seams))

    def placed(self, x: Tensor, state: TokenState) -> Tensor:
        """Insert the prompts of block 0 into embedded captions (B, L, E), padded to the context length: (B, 77, E)."""
        text, length = self.backbone.text, x.shape[1]
        table = text.positional_embedding.to(x.dtype)
        words = x - table[:length]  # without position embeddings, since positions change
        end = last_end(state)[:, None]  # (B, 1)
        at = end.clamp(max=self.columns - 1)  # a longer caption is cut, and its last token is the end of text
        place = torch.arange(self.columns, device=x.device)
        index = torch.where(place == at, end, place.clamp(max=length - 1))
        words = words.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
        pad = text.token_embedding.weight[0].to(x.dtype)
        words = torch.where((place <= at)[..., None], words, pad)
        prefix, suffix = self._split(self.text[0], x)
        return torch.cat([words[:, :1], prefix, words[:, 1:-1], suffix, words[:, -1:]], dim=1) + table

    def _replace_prompts(self, prompts: Tensor, x: Tensor, state: TokenState) -> Tensor:
        """Replace the prompts of captions x (B, 77, E) by the prompts (a + b, E) of a block."""
        a, b = self.around
        prefix, suffix = self._split(prompts, x)
        return torch.cat([x[:, :1], prefix, x[:, 1 + a : -1 - b], suffix, x[:, -1:]], dim=1)

    def _split(self, prompts: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        prefix, suffix = prompts.to(x.dtype).expand(len(x), -1, -1).split(self.around, dim=1)
        return prefix, suffix

    def taken_back(self, length: int, x: Tensor, state: TokenState) -> Tensor:
        """Map tokens (B, 77, E) to (B, L, E): position i gets the token that is read if a caption ends at i."""
        a, b = self.around
        place = torch.arange(length, device=x.device).clamp(max=self.columns - 1)
        behind = torch.where(place == self.columns - 1, a + b, a)
        return x[:, place + (a + b if self.config.readout == "past_end" else behind)]


def _prepend_prompts(prompts: Tensor, is_first: bool, x: Tensor, state: TokenState) -> Tensor:
    """Return the tokens (B, P + T*N, D) of videos with `prompts` (P, D), which replace those of the block before.

    x has this shape too or, in the first block of whole videos (`is_first`), that of frames (B*T, N, D).
    """
    rest = x.unflatten(0, (state.batch, state.frames)).flatten(1, 2) if is_first else x[:, len(prompts) :]
    return torch.cat([prompts.to(x.dtype).expand(len(rest), -1, -1), rest], dim=1)
