"""DAR: a set of low-rank adapters for each task on frozen CLIP; prototypes select a set, or mix the best two.

Dobrzeniecka et al., "Beyond Classification: Dynamic Adapter Routing for Continual Multimodal Retrieval",
arXiv:2605.31229, sections 3 to 6 and its appendices; the announced code was not found. z is a unit feature of the
frozen backbone. A task t has a set of adapters A_t and two prototypes p_t: the unit means of the features of its
training videos and of its captions. S_(1) and S_(2) are the two largest of all S_t:

    S_t = z . p_t,   M = S_(1) - S_(2),  the margin of the best task                       eq. 4
    M >= margin: A of the best task;  M < margin: w_1 A_(1) + w_2 A_(2),  w = softmax(S / tau)     eq. 5
    L = InfoNCE of the current task's pairs, encoded with its own set, at CLIP's temperature

The paper routes a pair: S_t is the mean of two similarities, one of its image and one of its caption. So the adapters
of a query depend on its answer, which is unknown in a search. Here a caption is routed by the prototypes of captions,
and a video by those of videos. In the paper's table 6 this costs 4 points in text-to-image retrieval.

Our interpretation:
- `route="block"` encodes a caption once for each task whose videos it searches, with the set of that task, so features
  of learned tasks never change. `route="query"` routes each caption once; the preset `paper` uses it.
- The paper does not give tau. Its reported rows merge sets by CoreSpace; here sets are merged by the weighted sum of
  eq. 5, which is 0.6 points worse in table 8.
- If the prototypes of a new and an earlier task are close, the paper trains the earlier set further; it does not give
  the threshold. With `reuse_above`, the new set starts as a copy of the earlier set if the features of the first batch
  are close enough. The earlier set does not change, so the stored features of its videos remain valid.

Shapes: B pairs, T frames, L text length, n items, t tasks, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip
from ctvr.methods.base import Batch, Capabilities, Method, Override, ParamGroup, Recipe, Task, l2_normalize
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.tower_lora import Place, TowerLoRA, weighted_seams
from ctvr.methods.settings import SettingError, require, setting

Tower = Literal["vision", "text"]
_TABLE = "tables 9 and 10"
PAPER = Recipe(
    "arXiv:2605.31229 (no code found)",
    {
        "method.lr": (1e-4, _TABLE),
        "method.rank": (8, _TABLE),
        "method.alpha": (16.0, _TABLE),
        "method.places": (("out", "fc", "proj"), _TABLE),
        "method.margin": (0.05, f"{_TABLE}: gamma"),
        "method.route": ("query", "section 4, without the video of a query and without the caption of a video"),
        "optim.name": ("adamw", _TABLE),
        "optim.weight_decay": (0.2, _TABLE),
        "optim.schedule": ("cosine", _TABLE),
        "optim.epochs": (20, _TABLE),
        "optim.warmup": (0.25, f"{_TABLE}: 5 of 20 epochs"),
        "data.batch_size": (256, _TABLE),
    },
    (
        "routing by both members of a pair, which shows a query its answer",
        "merging by CoreSpace",
        "galleries are encoded again for every evaluation; here stored videos stay",
    ),
)


@dataclass(frozen=True, kw_only=True)
class DARConfig:
    """Settings of DAR, with ranges in search_spaces/; defaults are the paper's where it prints a value."""

    UNPUBLISHED = ("optim.grad_clip",)

    lr: float = setting(1e-4, doc="learning rate of the current task's adapters", part="recipe")
    rank: int = setting(8, doc="rank r of the adapters")
    alpha: float = setting(16.0, doc="numerator of the adapters' factor alpha / r")
    places: tuple[Place, ...] = setting(
        ("out", "fc", "proj"), doc="projections with adapters in every block, a selection of q, k, v, out, fc and proj"
    )
    route: Literal["block", "query"] = setting(
        "block",
        doc="adapter set that encodes an item. block: the set of the task whose videos are searched (captions) or of "
        "the video's own task (videos); query: one set, or a mixture of two sets, selected by prototypes",
    )
    margin: float = setting(
        0.05,
        doc="margin gamma, with route=query: if the similarities of the best two adapter sets differ by less, the "
        "sets are mixed",
    )
    tau: float = setting(0.07, doc="temperature of the mixture, eq. 5", unpublished=True)
    reuse_above: float | None = setting(
        None,
        doc="similarity, of the features of a task's first batch with an earlier task's prototype, above which the "
        "task's adapters start as a copy of the earlier adapters; none: no copies",
        unpublished=True,
        later=True,
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", hint="Use <lr>=0 for the zero-shot model.")
        require(self, ">= 1", "rank", hint="The paper uses 8.")
        if not self.places:
            raise SettingError("<places> is empty", "Use some of q, k, v, out, fc and proj.")
        require(self, ">= 0", "margin", hint="Use 0 to never mix sets.")
        require(self, "> 0", "tau", hint="Use 0.07.")


def mixture(scores: Tensor, margin: float, tau: float) -> Tensor:
    """Compute the weights (n, t) of the tasks' adapter sets from the scores S_t (n, t), eq. 4 and 5.

    A row has one weight of 1, or two that sum to 1 if the best two scores are closer than `margin`. The score of a task
    without a prototype is -inf.
    """
    if scores.shape[1] == 1:
        return torch.ones_like(scores)
    best, which = scores.topk(2, dim=1)
    shares = (best / tau).softmax(dim=1)
    is_close = best[:, :1] - best[:, 1:] < margin
    first = torch.tensor([1.0, 0.0], device=scores.device).expand_as(shares)
    return torch.zeros_like(scores).scatter(1, which, torch.where(is_close, shares, first))


class DAR(Method):
    """Frozen CLIP with a set of adapters for each task."""

    Config = DARConfig
    ON_FEATURES = {"method.lr": 5e-3}
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": PAPER,
        "query": Override({"method.route": "query"}),
        "shapes": {"method.lr": 2e-5},  # with optim.lr_scale=50: 1e-3, which suits the small backbone
    }
    prototypes: Tensor  # (2, tasks, d) unit vectors of videos and captions; zero until a task is learned

    @classmethod
    def capabilities(cls, config: DARConfig) -> Capabilities:
        return Capabilities(
            fits_vectors=True,
            uses_all_parameters=True,
            joins_tasks=True,
            accumulation="features",
            task_conditioned_text=config.route == "block",
        )

    def __init__(self, config: DARConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.sets = nn.ModuleList()  # one for each task so far
        self.register_buffer("prototypes", torch.empty(0))
        self._is_fresh = False  # whether the current set may still become a copy of an earlier set

    # --------------------------------------------------------------------------------------- tasks

    def begin_task(self, task: Task) -> None:
        clip, c = self.backbone, self.config
        if not self.sets:
            self.prototypes = torch.zeros(2, task.num_tasks, clip.embed_dim, device=clip.logit_scale.device)
        low_rank = (c.places, c.rank, c.alpha)
        made = {"vision": TowerLoRA(clip.vision, *low_rank), "text": TowerLoRA(clip.text, *low_rank)}
        self.sets.append(nn.ModuleDict(made))
        self._is_fresh = task.index > 0 and c.reuse_above is not None and not self.is_joint

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Store the prototypes of the task, if a setting needs them; every worker receives all pairs of the task."""
        if self.config.route == "block" and self.config.reuse_above is None:
            return
        found = [(self._frozen_videos(batch.frames), self._frozen_texts(batch.tokens)) for batch in loader]
        if found:
            both = [torch.cat(features).mean(dim=0) for features in zip(*found, strict=True)]
            self.prototypes[:, task.index] = l2_normalize(torch.stack(both))

    def param_groups(self) -> list[ParamGroup]:
        trained = self.sets if self.is_joint else self.sets[-1:]
        return [ParamGroup(name="adapters", params=list(trained.parameters()), lr=self.config.lr)]

    # ------------------------------------------------------------------------------------ encoding

    def encode_video(self, frames: Tensor) -> Tensor:
        return self._video(frames, self._route(0, lambda: self._frozen_videos(frames)))

    def encode_video_for_task(self, frames: Tensor, task: int) -> Tensor:
        """Encode videos with the set of their `task`; with route=query, with the sets that their features select."""
        return self.encode_video(frames) if self.config.route == "query" else self._video(frames, task)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        own = None if self.config.route == "query" else task
        route = self._route(1, lambda: self._frozen_texts(tokens)) if own is None else own
        return l2_normalize(self.backbone.text(tokens, self._seams("text", route)))

    def _video(self, frames: Tensor, route: int | Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames, self._seams("vision", route)))

    def _seams(self, tower: Tower, route: int | Tensor) -> list[BlockSeams] | None:
        """Return hooks (seams) that apply the set of a task or, given weights (n, t), the weighted sum of sets.

        A task without a set gets the newest one. The result is None before the first task.
        """
        if not self.sets:
            return None
        if not isinstance(route, Tensor):
            return self._set(min(route, len(self.sets) - 1), tower).seams()
        chosen = route.any(dim=0).nonzero()[:, 0].tolist()
        return weighted_seams([(self._set(task, tower), route[:, task]) for task in chosen])

    def _set(self, task: int, tower: Tower) -> TowerLoRA:
        return cast(TowerLoRA, cast(nn.ModuleDict, self.sets[task])[tower])

    # ------------------------------------------------------------------------------------- routing

    def _route(self, kind: int, features: Callable[[], Tensor]) -> int | Tensor:
        """Return the index of the current task or, with route=query after training, weights (n, t) for n items."""
        if self.config.route == "block" or self.training or not self.sets:
            return len(self.sets) - 1
        return mixture(self._scores(kind, features()), self.config.margin, self.config.tau)

    def _scores(self, kind: int, features: Tensor) -> Tensor:
        """Compute similarities (n, t) of frozen features (n, d) to prototypes: videos (kind 0) or captions (kind 1)."""
        prototypes = self.prototypes[kind, : len(self.sets)]
        return (features @ prototypes.mT).masked_fill(~prototypes.any(dim=1), -torch.inf)

    @torch.no_grad()
    def _frozen_videos(self, frames: Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames))

    @torch.no_grad()
    def _frozen_texts(self, tokens: Tensor) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    # -------------------------------------------------------------------------------------- losses

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if self._is_fresh and torch.is_grad_enabled():
            self._start_from_similar(batch)
        return super().losses(batch)

    @torch.no_grad()
    def _start_from_similar(self, batch: Batch) -> None:
        """Copy the set of the most similar earlier task into the current one if the similarity is > `reuse_above`."""
        self._is_fresh = False
        videos, texts = gather(self._frozen_videos(batch.frames)), gather(self._frozen_texts(batch.tokens))
        own = [l2_normalize(features.mean(dim=0, keepdim=True)) for features in (videos, texts)]
        scores = (self._scores(0, own[0]) + self._scores(1, own[1]))[0] / 2
        task = int(scores.argmax())
        if self.config.reuse_above is not None and float(scores[task]) > self.config.reuse_above:
            for name, parameter in self.sets[-1].named_parameters():
                parameter.copy_(self.sets[task].get_parameter(name))
