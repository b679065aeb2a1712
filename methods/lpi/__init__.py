"""LPI: one small low-rank prompt for each task, in both towers of frozen CLIP.

Yan et al., "Low-rank Prompt Interaction for Continual Vision-Language Retrieval", ACM MM 2024, arXiv:2501.14369, as its
code (Kelvin-ywc/LPI@92e5800, folder retrieval) computes it; of the paper only the abstract was available. With the
prompts P[l] (m, D) of layers l = 0, 1, .. (methods/lpi/prompts.py):

    video:    [class, P[0], patches] of every frame, then the mean over frames
    caption:  [start, P[0], words, ".", end]; the prompts take the places, and the positions, of m words "X"
    before block l = 1, .., depth - 1 the tokens of the prompts become tokens + P[l]
    L = L_contrastive + align_weight L_align + task_weight L_task

Former prompts never change, and neither does CLIP: a stored video keeps its feature, and so does a caption that
searches the videos of a former task. So nothing drifts; only a route can be wrong.

Our reading, and the release (preset `released`):

- In the release only P[0] acts: its condition for deeper layers is never true, and P[1], .. are moved by L_align and
  L_task alone. Here P[l] is added in front of block l (`depth`), which the paper calls deep prompting.
- `route="block"` encodes a caption for each task whose videos it searches. The release recognises the task of each
  video and each caption by the nearest of five centres of frozen features (`route="query"`).
- The release's L_task applies a sigmoid twice, so that it has nearly no gradient, and reads the similarity of COCO's
  tasks from a file. Here it is off. If it is on, tasks are similar where the means of their captions' frozen features
  have a cosine above `similar_above`; the current task's mean is that of the batch.
- Centres: a k-means of our own, since the release's depends on its library's random numbers.

Shapes: B pairs, T frames, L text length, m prompts, D width, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip, TokenState
from ctvr.methods.base import Batch, Capabilities, Method, ParamGroup, Recipe, Task, l2_normalize
from ctvr.methods.layers.captions import truncate
from ctvr.methods.layers.deep_prompts import insert
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.lpi.prompts import LowRankPrompts, alignment, k_means, nearest_task, relatedness
from ctvr.methods.settings import SettingError, require, setting

_RELEASE = "Kelvin-ywc/LPI@92e5800"
_CONFIG = "retrieval/configs/lpi/coco_lpi.json"
_PAPER: dict[str, tuple[Any, str]] = {
    "method.lr": (0.05, _CONFIG),
    "method.num_prompts": (16, _CONFIG),
    "method.rank": (4, "retrieval/models/prompts.py"),
    "method.layers": (9, "retrieval/models/slinet.py"),
    "method.align_weight": (0.1, "retrieval/models/slinet.py"),
    "method.align_temperature": (0.01, "retrieval/models/slinet.py"),
    "optim.name": ("sgd", _CONFIG),
    "optim.momentum": (0.9, _CONFIG),
    "optim.weight_decay": (2e-4, _CONFIG),
    "optim.decay_parameters": ("all", "retrieval/methods/sprompt.py: one group"),
    "optim.schedule": ("cosine_epochs", "retrieval/methods/sprompt.py: CosineAnnealingLR, stepped after each epoch"),
    "optim.least": (0.0, "retrieval/methods/sprompt.py: eta_min is not given"),
    "optim.warmup": (0.0, f"{_CONFIG}: there is none"),
    "optim.grad_clip": (None, "retrieval/methods/sprompt.py: there is none"),
    "optim.epochs": (10, _CONFIG),
    "data.batch_size": (64, _CONFIG),
}
_LEFT_OUT = (
    "weights in float16",
    "R@1 as a mean over tasks of a search among all images so far",
)
_RELEASED = {
    **_PAPER,
    "method.depth": (1, "retrieval/models/clip: layer_id < 0 is never true"),
    "method.route": ("query", "retrieval/methods/sprompt.py: the nearest centre"),
    "method.centres": (5, "retrieval/methods/sprompt.py"),
    "method.task_weight": (0.1, "retrieval/models/slinet.py"),
    "method.task_temperature": (0.001, "retrieval/models/slinet.py"),
    "method.similar_above": (0.4, "retrieval/models/slinet.py"),
    "method.double_sigmoid": (True, "retrieval/models/slinet.py: a sigmoid, then BCE with logits"),
}


@dataclass(frozen=True, kw_only=True)
class LPIConfig:
    """Settings, with ranges in search_spaces/; defaults are the released code's."""

    lr: float = setting(0.05, doc="learning rate of the current task's factors", part="recipe")
    num_prompts: int = setting(16, doc="prompts m of a layer and tower, at most a quarter of the text length")
    rank: int = setting(4, doc="rank r of the prompts")
    layers: int = setting(9, doc="layers K for which a task has prompts")
    depth: int = setting(
        9, doc="layers whose prompts act, at most `layers`; deeper ones than a tower act in none", at_most="layers"
    )
    route: Literal["block", "query"] = setting(
        "block",
        doc="task whose prompts encode an item. block: the task whose videos are searched, and a video's own; query: "
        "the one whose centres are nearest",
    )
    centres: int = setting(5, doc="centres of a task and modality, with route=query")
    align_weight: float = setting(0.1, doc="weight of the alignment of both towers' prompts", part="loss")
    align_temperature: float = setting(0.01, doc="temperature of each side of the alignment", part="loss")
    task_weight: float = setting(
        0.0, doc="weight of the loss over similar tasks; released: 0.1", later=True, part="loss"
    )
    task_temperature: float = setting(0.001, doc="temperature of the loss over similar tasks", later=True, part="loss")
    similar_above: float = setting(0.4, doc="cosine above which two tasks are similar", later=True, part="loss")
    double_sigmoid: bool = setting(
        False, doc="second sigmoid in the loss over similar tasks, as released", exact=True, part="loss"
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", "align_weight", "task_weight", hint="Use 0 to leave it out.")
        require(self, ">= 1", "num_prompts", "rank", "layers", "depth", "centres")
        if self.depth > self.layers:
            raise SettingError(
                f"<depth> must be <= layers, got {self.depth} and {self.layers}",
                f"Use <depth>={self.layers} or <layers>={self.depth}.",
            )
        require(self, "> 0", "align_temperature", hint="Use 0.01.")
        require(self, "> 0", "task_temperature", hint="Use 0.001.")
        require(self, "in [-1, 1]", "similar_above", hint="The release uses 0.4.")


class LPI(Method):
    """Frozen CLIP with the low-rank prompts of each task."""

    Config = LPIConfig
    OPTIMIZER: ClassVar[dict[str, Any]] = {
        name: value for name, (value, _) in _PAPER.items() if name.startswith("optim.") and name != "optim.epochs"
    }
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": Recipe(_RELEASE, _PAPER, _LEFT_OUT),
        "released": Recipe(_RELEASE, _RELEASED, (*_LEFT_OUT, "the similarity of COCO's tasks, from a file")),
        "shapes": {  # with optim.lr_scale=50: 1e-2 of AdamW, with the usual settings
            "method.lr": 2e-4,
            "optim.name": "adamw",
            "optim.momentum": 0.0,
            "optim.weight_decay": 0.2,
            "optim.decay_parameters": "matrices",
            "optim.schedule": "cosine",
            "optim.warmup": 0.1,
            "optim.grad_clip": 1.0,
        },
    }
    keys: Tensor  # (2, tasks, centres, d) of videos and captions; infinite until a task is learned
    means: Tensor  # (tasks, d) mean frozen feature of a task's captions

    @classmethod
    def capabilities(cls, config: LPIConfig) -> Capabilities:
        return Capabilities(
            uses_all_parameters=True,
            joins_tasks=True,
            accumulation="features",
            task_conditioned_text=config.route == "block",
            rewrites_captions=True,  # as "X .. X caption ."
        )

    def __init__(self, config: LPIConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.count = min(config.num_prompts, backbone.text.context_length // 4)
        self.prompts = nn.ModuleList()  # one for each task so far
        for name in ("keys", "means"):
            self.register_buffer(name, torch.empty(0))

    @cached_property
    def _marks(self) -> tuple[int, int]:
        """Return the token ids of "X" and "."; each is one token."""
        word, stop = self.backbone.tokenize(["X", "."])
        return int(word[1]), int(stop[1])

    # --------------------------------------------------------------------------------------- tasks

    def begin_task(self, task: Task) -> None:
        clip, c = self.backbone, self.config
        if not self.prompts:
            device, d = clip.logit_scale.device, clip.embed_dim
            self.keys = torch.full((2, task.num_tasks, c.centres, d), torch.inf, device=device)
            self.means = torch.zeros(task.num_tasks, d, device=device)
        self.prompts.append(LowRankPrompts(c.layers, self.count, c.rank, clip.vision.width, clip.text.width))

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Store the centres of the task's frozen features, and the mean of its captions'; every worker sees all."""
        if self.config.route != "query" and not self.config.task_weight:
            return
        found = [(self._frozen_videos(batch.frames), self._frozen_texts(batch.tokens)) for batch in loader]
        if found:
            both = [torch.cat(features) for features in zip(*found, strict=True)]
            self.keys[:, task.index] = torch.stack([k_means(features, self.config.centres) for features in both])
            self.means[task.index] = both[1].mean(dim=0)

    def param_groups(self) -> list[ParamGroup]:
        trained = self.prompts if self.is_joint else self.prompts[-1:]
        return [ParamGroup(name="prompts", params=list(trained.parameters()), lr=self.config.lr)]

    # ------------------------------------------------------------------------------------ encoding

    def encode_video(self, frames: Tensor) -> Tensor:
        return self._video(frames, self._routed(0, lambda: self._frozen_videos(frames)))

    def encode_video_for_task(self, frames: Tensor, task: int) -> Tensor:
        """Encode videos of `task` with its prompts, or with those that their own features choose."""
        return self.encode_video(frames) if self.config.route == "query" else self._video(frames, task)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        own = None if self.config.route == "query" else task
        routed = self._routed(1, lambda: self._frozen_texts(tokens)) if own is None else own
        prompts = self._chosen("text", routed)
        table = self.backbone.text.positional_embedding

        def place(x: Tensor, state: TokenState) -> Tensor:
            words = prompts[..., 0, :, :] + table[1 : 1 + self.count]
            return torch.cat([x[:, :1], words.to(x.dtype).expand(len(x), -1, -1), x[:, 1 + self.count :]], dim=1)

        seams = self._seams(prompts, place, len(self.backbone.text.blocks))
        return l2_normalize(self.backbone.text(self._written(tokens), seams))

    def _video(self, frames: Tensor, task: int | Tensor) -> Tensor:
        prompts = self._chosen("vision", task)
        if prompts.ndim == 4:  # (B, K, m, D) -> of each frame
            prompts = prompts.repeat_interleave(frames.shape[1], dim=0)
        first = insert(self.backbone.vision.ln_pre(prompts[..., 0, :, :]))
        return mean_pool(self.backbone.vision(frames, self._seams(prompts, first, len(self.backbone.vision.blocks))))

    def _chosen(self, tower: Literal["vision", "text"], task: int | Tensor) -> Tensor:
        """Return the prompts (K, m, D) of a task (the newest for a later task), or (B, K, m, D), those of each item."""
        if isinstance(task, Tensor):
            return torch.stack([getattr(prompts, tower)() for prompts in self.prompts])[task]
        found: Tensor = getattr(self.prompts[min(task, len(self.prompts) - 1)], tower)()
        return found

    def _seams(self, prompts: Tensor, first: Any, blocks: int) -> list[BlockSeams]:
        """Build the seams of a tower: `first` before its first block, sums before the next `depth - 1` ones."""
        sums = [partial(_add, prompts[..., layer, :, :]) for layer in range(1, min(self.config.depth, blocks))]
        seams = [BlockSeams(before=before) for before in (first, *sums)]
        return seams + [BlockSeams()] * (blocks - len(seams))

    def _written(self, tokens: Tensor) -> Tensor:
        """Write captions (B, L) as "X .. X caption .": (B, L + m + 1); too long ones lose words, not their end."""
        tokens = truncate(tokens, self.backbone.text.context_length - self.count - 1)
        rows = torch.arange(len(tokens), device=tokens.device)
        end, last = tokens.amax(dim=1), tokens.argmax(dim=1) + self.count
        word, stop = self._marks
        words = tokens.new_full((len(tokens), self.count), word)
        found = torch.cat([tokens[:, :1], words, tokens[:, 1:], tokens.new_zeros(len(tokens), 1)], dim=1)
        found[rows, last], found[rows, last + 1] = stop, end
        return found

    # ------------------------------------------------------------------------------------- routing

    def _routed(self, kind: int, features: Any) -> int | Tensor:
        """Return the current task, or (B,) the one whose centres are nearest; training uses the current one."""
        if self.config.route == "block" or self.training:
            return len(self.prompts) - 1
        return nearest_task(features(), self.keys[kind, : len(self.prompts)])

    @torch.no_grad()
    def _frozen_videos(self, frames: Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames))

    @torch.no_grad()
    def _frozen_texts(self, tokens: Tensor) -> Tensor:
        return l2_normalize(self.backbone.text(self._written(tokens)))

    # -------------------------------------------------------------------------------------- losses

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms, c = super().losses(batch), self.config
        if c.align_weight:
            own = self.prompts[-1]
            assert isinstance(own, LowRankPrompts)
            terms["alignment"] = c.align_weight * alignment(own.vision(), own.text(), c.align_temperature)
        if c.task_weight and len(self.prompts) > 1:
            similar = self._similar(gather(self._frozen_texts(batch.tokens)).mean(dim=0))
            parts = [relatedness(rows, similar, c.task_temperature, c.double_sigmoid) for rows in self._rows()]
            terms["tasks"] = c.task_weight * (parts[0] + parts[1]) / 2
        return terms

    def _rows(self) -> tuple[Tensor, Tensor]:
        """Return the flattened prompts of all tasks so far, (t, K m D) for each tower; former ones are constants."""
        last = len(self.prompts) - 1

        def rows(tower: Literal["vision", "text"]) -> Tensor:
            found = [self._chosen(tower, task).flatten() for task in range(last + 1)]
            return torch.stack([*(x.detach() for x in found[:last]), found[last]])

        return rows("vision"), rows("text")

    def _similar(self, present: Tensor) -> Tensor:
        """Return which of the tasks so far are similar, (t, t) bool; `present` (d,) replaces the mean of the last."""
        means = l2_normalize(torch.stack([*self.means[: len(self.prompts) - 1], present]))
        itself = torch.eye(len(means), dtype=torch.bool, device=means.device)
        return (means @ means.mT > self.config.similar_above) | itself


def _add(prompts: Tensor, x: Tensor, state: TokenState) -> Tensor:
    """Add prompts (m, D), or (G, m, D) of each group, to the tokens 1..m of x (G, N, D)."""
    count = prompts.shape[-2]
    return torch.cat([x[:, :1], x[:, 1 : 1 + count] + prompts.to(x.dtype), x[:, 1 + count :]], dim=1)
