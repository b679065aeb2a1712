"""LPI: low-rank prompts for each task, in both towers of frozen CLIP.

Yan et al., "Low-rank Prompt Interaction for Continual Vision-Language Retrieval", ACM MM 2024, arXiv:2501.14369, as in
the released code (Kelvin-ywc/LPI@92e5800, folder retrieval). Of the paper only the abstract was available. P[l] (m, D)
are the prompts of layer l = 0, 1, ... (methods/lpi/prompts.py):

    video:    [class, P[0], patches] of every frame, then the mean over frames
    caption:  [start, P[0], words, ".", end]; P[0] replaces the embeddings of m words "X", and gets their positions
    before block l = 1, ..., depth - 1, P[l] is added to the m prompt tokens
    L = L_contrastive + align_weight L_align + task_weight L_task

Prompts of previous tasks and CLIP never change. So the features of stored videos, and of captions that search videos of
previous tasks, do not change either. Forgetting can only arise if an item is routed to the wrong task.

The defaults are our interpretation, which differs from the released code (preset `released`):

- In the released code only P[0] is used, because its condition for deeper layers is never true, and P[1], P[2], ... are
  trained by L_align and L_task only. Here P[l] is added before block l (`depth`), as in deep prompting.
- Here a caption is encoded for each task whose videos it searches (`route="block"`). The released code selects the task
  of each video and caption by the nearest of five centers of frozen features (`route="query"`).
- L_task of the released code applies a sigmoid twice, so that its gradient is nearly zero, and reads from a file which
  tasks of COCO are similar. Here L_task is off by default. Two tasks count as similar if the mean frozen features of
  their captions have a cosine above `similar_above`; for the current task the mean is that of the batch.
- Our k-means computes the centers, because the k-means of the release depends on random numbers of its library.

Shapes: B pairs, T frames, L text length, G attention groups, N tokens, K layers, m prompts, D width, d joint embedding,
t tasks so far.
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
from ctvr.methods.layers.deep_prompts import insert_prompts
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.transfer import truncate
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
    "method.route": ("query", "retrieval/methods/sprompt.py: the nearest center"),
    "method.centres": (5, "retrieval/methods/sprompt.py"),
    "method.task_weight": (0.1, "retrieval/models/slinet.py"),
    "method.task_temperature": (0.001, "retrieval/models/slinet.py"),
    "method.similar_above": (0.4, "retrieval/models/slinet.py"),
    "method.double_sigmoid": (True, "retrieval/models/slinet.py: a sigmoid, then BCE with logits"),
}


@dataclass(frozen=True, kw_only=True)
class LPIConfig:
    """Settings of LPI; default values are from the released code unless a setting says otherwise."""

    lr: float = setting(0.05, doc="learning rate of the low-rank factors of the current task", part="recipe")
    num_prompts: int = setting(
        16, doc="number m of prompts per layer and tower, at most a quarter of the context length"
    )
    rank: int = setting(4, doc="rank r of the prompts")
    layers: int = setting(9, doc="number K of layers for which a task has prompts")
    depth: int = setting(
        9,
        doc="number of layers whose prompts are used, at most `layers` and the number of blocks of a tower",
        at_most="layers",
    )
    route: Literal["block", "query"] = setting(
        "block",
        doc="task whose prompts encode an item. block: the video's own task, or for captions the task whose videos "
        "are searched; query: the task with the nearest center",
    )
    centres: int = setting(5, doc="number of centers per task and modality, with route=query")
    align_weight: float = setting(0.1, doc="weight of the alignment of the prompts of both towers", part="loss")
    align_temperature: float = setting(
        0.01, doc="temperature that divides the prompts of each tower in the alignment", part="loss"
    )
    task_weight: float = setting(
        0.0, doc="weight of the loss on similar tasks (released code: 0.1)", later=True, part="loss"
    )
    task_temperature: float = setting(0.001, doc="temperature of the loss on similar tasks", later=True, part="loss")
    similar_above: float = setting(
        0.4, doc="cosine similarity above which two tasks count as similar", later=True, part="loss"
    )
    double_sigmoid: bool = setting(
        False,
        doc="whether to apply a second sigmoid in the loss on similar tasks, as in the released code",
        exact=True,
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", "align_weight", "task_weight", hint="Use 0 to disable it.")
        require(self, ">= 1", "num_prompts", "rank", "layers", "depth", "centres")
        if self.depth > self.layers:
            raise SettingError(
                f"<depth> must be <= layers, got {self.depth} and {self.layers}",
                f"Use <depth>={self.layers} or <layers>={self.depth}.",
            )
        require(self, "> 0", "align_temperature", hint="Use 0.01.")
        require(self, "> 0", "task_temperature", hint="Use 0.001.")
        require(self, "in [-1, 1]", "similar_above", hint="The released code uses 0.4.")


class LPI(Method):
    """Frozen CLIP with low-rank prompts for each task."""

    Config = LPIConfig
    OPTIMIZER: ClassVar[dict[str, Any]] = {
        name: value for name, (value, _) in _PAPER.items() if name.startswith("optim.") and name != "optim.epochs"
    }
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": Recipe(_RELEASE, _PAPER, _LEFT_OUT),
        "released": Recipe(_RELEASE, _RELEASED, (*_LEFT_OUT, "the similarity of COCO's tasks, from a file")),
        "shapes": {  # AdamW with the default settings; with optim.lr_scale=50 the learning rate is 1e-2
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
    keys: Tensor  # (2, tasks, centers, d) centers of videos and captions; infinite until a task is learned
    means: Tensor  # (tasks, d) mean frozen feature of the captions of each task

    @classmethod
    def capabilities(cls, config: LPIConfig) -> Capabilities:
        return Capabilities(
            uses_all_parameters=True,
            joins_tasks=True,
            accumulation="features",
            task_conditioned_text=config.route == "block",
            rewrites_captions=True,  # to "X ... X caption ."
        )

    def __init__(self, config: LPIConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.count = min(config.num_prompts, backbone.text.context_length // 4)
        self.prompts = nn.ModuleList()  # a `LowRankPrompts` for each task so far
        for name in ("keys", "means"):
            self.register_buffer(name, torch.empty(0))

    @cached_property
    def _marks(self) -> tuple[int, int]:
        """Token ids of "X" and "." in the tokenizer, which encodes each as one token."""
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
        """Store the centers of the task's frozen features, and its captions' mean; every worker gets all pairs."""
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
        return self._encode_frames(frames, self._route(0, lambda: self._frozen_videos(frames)))

    def encode_video_for_task(self, frames: Tensor, task: int) -> Tensor:
        """Encode videos with the prompts of `task`; with route=query, of the task with the nearest center."""
        return self.encode_video(frames) if self.config.route == "query" else self._encode_frames(frames, task)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        own = None if self.config.route == "query" else task
        routed = self._route(1, lambda: self._frozen_texts(tokens)) if own is None else own
        prompts = self._select("text", routed)
        table = self.backbone.text.positional_embedding

        def place(x: Tensor, state: TokenState) -> Tensor:
            words = prompts[..., 0, :, :] + table[1 : 1 + self.count]
            return torch.cat([x[:, :1], words.to(x.dtype).expand(len(x), -1, -1), x[:, 1 + self.count :]], dim=1)

        seams = self._seams(prompts, place, len(self.backbone.text.blocks))
        return l2_normalize(self.backbone.text(self._rewrite(tokens), seams))

    def _encode_frames(self, frames: Tensor, task: int | Tensor) -> Tensor:
        prompts = self._select("vision", task)
        if prompts.ndim == 4:  # (B, K, m, D) -> (B*T, K, m, D)
            prompts = prompts.repeat_interleave(frames.shape[1], dim=0)
        first = insert_prompts(self.backbone.vision.ln_pre(prompts[..., 0, :, :]))
        return mean_pool(self.backbone.vision(frames, self._seams(prompts, first, len(self.backbone.vision.blocks))))

    def _select(self, tower: Literal["vision", "text"], task: int | Tensor) -> Tensor:
        """Return the prompts (K, m, D) of a task; if `task` is (B,), one task per item, return (B, K, m, D).

        A task without prompts gets those of the newest task.
        """
        if isinstance(task, Tensor):
            return torch.stack([getattr(prompts, tower)() for prompts in self.prompts])[task]
        found: Tensor = getattr(self.prompts[min(task, len(self.prompts) - 1)], tower)()
        return found

    def _seams(self, prompts: Tensor, first: Any, blocks: int) -> list[BlockSeams]:
        """Return one `BlockSeams` per block: `first` before block 0; the next `depth - 1` blocks add their prompts."""
        sums = [partial(_add, prompts[..., layer, :, :]) for layer in range(1, min(self.config.depth, blocks))]
        seams = [BlockSeams(before=before) for before in (first, *sums)]
        return seams + [BlockSeams()] * (blocks - len(seams))

    def _rewrite(self, tokens: Tensor) -> Tensor:
        """Rewrite captions (B, L) as "X ... X caption .", (B, L + m + 1); captions that would be too long are cut."""
        tokens = truncate(tokens, self.backbone.text.context_length - self.count - 1)
        rows = torch.arange(len(tokens), device=tokens.device)
        end, last = tokens.amax(dim=1), tokens.argmax(dim=1) + self.count
        word, stop = self._marks
        words = tokens.new_full((len(tokens), self.count), word)
        found = torch.cat([tokens[:, :1], words, tokens[:, 1:], tokens.new_zeros(len(tokens), 1)], dim=1)
        found[rows, last], found[rows, last + 1] = stop, end
        return found

    # ------------------------------------------------------------------------------------- routing

    def _route(self, kind: int, features: Any) -> int | Tensor:
        """Return the index of the current task in training or with route=block, else each item's nearest task (B,).

        Args:
            kind: 0 for videos, 1 for captions.
            features: function that returns their frozen features (B, d).
        """
        if self.config.route == "block" or self.training:
            return len(self.prompts) - 1
        return nearest_task(features(), self.keys[kind, : len(self.prompts)])

    @torch.no_grad()
    def _frozen_videos(self, frames: Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames))

    @torch.no_grad()
    def _frozen_texts(self, tokens: Tensor) -> Tensor:
        return l2_normalize(self.backbone.text(self._rewrite(tokens)))

    # -------------------------------------------------------------------------------------- losses

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms, c = super().losses(batch), self.config
        if c.align_weight:
            own = self.prompts[-1]
            assert isinstance(own, LowRankPrompts)
            terms["alignment"] = c.align_weight * alignment(own.vision(), own.text(), c.align_temperature)
        if c.task_weight and len(self.prompts) > 1:
            similar = self._similar(gather(self._frozen_texts(batch.tokens)).mean(dim=0))
            parts = [relatedness(rows, similar, c.task_temperature, c.double_sigmoid) for rows in self._flatten()]
            terms["tasks"] = c.task_weight * (parts[0] + parts[1]) / 2
        return terms

    def _flatten(self) -> tuple[Tensor, Tensor]:
        """Return the flattened prompts (t, K m D) of each tower; only the current task's prompts have a gradient."""
        last = len(self.prompts) - 1

        def rows(tower: Literal["vision", "text"]) -> Tensor:
            found = [self._select(tower, task).flatten() for task in range(last + 1)]
            return torch.stack([*(x.detach() for x in found[:last]), found[last]])

        return rows("vision"), rows("text")

    def _similar(self, present: Tensor) -> Tensor:
        """Return which pairs of tasks are similar, (t, t) bool; `present` (d,) is the current task's mean feature."""
        means = l2_normalize(torch.stack([*self.means[: len(self.prompts) - 1], present]))
        itself = torch.eye(len(means), dtype=torch.bool, device=means.device)
        return (means @ means.mT > self.config.similar_above) | itself


def _add(prompts: Tensor, x: Tensor, state: TokenState) -> Tensor:
    """Add prompts (m, D), or (G, m, D) for each group, to tokens 1 to m of x (G, N, D)."""
    count = prompts.shape[-2]
    return torch.cat([x[:, :1], x[:, 1 : 1 + count] + prompts.to(x.dtype), x[:, 1 + count :]], dim=1)
