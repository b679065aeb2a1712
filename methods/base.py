"""The contract between a method and the training loop.

The loop calls `method.set_pair_source(source)` once. For every task of a stream it then calls::

    method.begin_task(task)             # may add parameters; names and shapes depend on task.index only
    method.prepare_task(task, loader)   # reads the task's training pairs once, without augmentation
    for batch in loader:                # repeated for `optim.epochs` epochs
        method.set_position(position)
        sum(method.losses(batch).values()).backward()
        method.before_step();  optimizer.step();  method.after_step()
    method.end_task(task, loader)       # reads the task's training pairs once more, without augmentation
    gallery = method.encode_video(...)  # features of the task's searched videos, which are then stored
    method.on_gallery_stored(task, gallery)
    method.score(method.encode_text(queries), gallery)

To resume a run, the loop repeats `begin_task` and `on_gallery_stored` for the finished tasks and loads the last
checkpoint. Everything that later tasks need must therefore be a parameter or a buffer. Objects that `begin_task`
creates again (a teacher, a momentum encoder) need not be in the state.

Epochs run in training mode, all other calls and commits in evaluation mode. If a method is evaluated with an average
of its trained weights, it exchanges the two sets of weights in `train(mode)` and keeps both sets in its state.

A method defines the members of `Method`. The optional members are in `Hooks` (hooks.py), and the types of arguments are
in data.py.

Shapes: B pairs or videos, T frames, L text length, d joint embedding.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.capabilities import Capabilities as Capabilities
from ctvr.methods.capabilities import capabilities_of, neutral
from ctvr.methods.data import Batch as Batch
from ctvr.methods.data import Decay as Decay
from ctvr.methods.data import PairSource as PairSource
from ctvr.methods.data import ParamGroup as ParamGroup
from ctvr.methods.data import Position as Position
from ctvr.methods.data import SeparableEncoders as SeparableEncoders
from ctvr.methods.data import Task as Task
from ctvr.methods.hooks import Hooks
from ctvr.methods.layers.frozen import Frozen as Frozen
from ctvr.methods.recipes import Override as Override
from ctvr.methods.recipes import Recipe as Recipe
from ctvr.methods.recipes import Tuned as Tuned


class Method(Hooks):
    """Base class of retrievers, built as `Class(config, backbone)`, and of strategies, built as `Class(config, base)`.

    A strategy sets `wraps = True` and has a setting `base`, the name of the retriever that it wraps; a retriever does
    not depend on its strategy. Retrievers and strategies store their settings as `self.config`. A method of another
    package may subclass a method of this package and inherits every member that it does not define. Methods of this
    package do not subclass each other.
    """

    Config: ClassVar[type]  # a frozen dataclass; every field is a setting
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}  # name -> {dotted setting: value}, a recipe or an `Override`
    OPTIMIZER: ClassVar[dict[str, Any]] = {}  # defaults of `optim.*` to which the rates of Config belong
    # Defaults of `method.*` on imported features of videos and captions, because learning rates for CLIP hardly change
    # the towers there. A search covers 0.1 to 10 times each rate
    ON_FEATURES: ClassVar[dict[str, Any]] = {}
    # Names of attributes outside `state_dict()` that later epochs of a task read: tensors, numbers, None or a
    # VideoFeatureCache. Submodules may declare them, too. Their values may differ between workers, so several workers
    # do not write mid-task checkpoints
    EPOCH_STATE: ClassVar[tuple[str, ...]] = ()

    def begin_task(self, task: Task) -> None:
        """Prepare the method for `task`; no other member may add or remove parameters."""

    @neutral
    def param_groups(self) -> list[ParamGroup]:
        """Return all parameters that the current task trains, each once; an empty list if there are none."""
        return []

    def encode_video(self, frames: Tensor) -> Tensor:
        """Encode videos into the features that are stored: frames (B, T, 3, H, W) -> (B, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must define encode_video(frames).")

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Encode captions: tokens (B, L) int64 -> features (B, ...).

        Args:
            tokens: captions, with zeros after the end-of-text token.
            task: index of the task whose stored videos are searched; None while the current task is trained. The
                method may ignore it unless it declares `Capabilities.task_conditioned_text`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define encode_text(tokens, task).")

    def scale(self) -> Tensor:
        """Return 1 / temperature of the contrastive loss, a scalar; the default is CLIP's exp(logit_scale)."""
        clip: Any = getattr(self, "backbone", None)
        if clip is None:
            raise NotImplementedError(f"{type(self).__name__} must define scale(), or keep CLIP as self.backbone.")
        scale: Tensor = clip.logit_scale.exp()
        return scale

    @neutral
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms of the loss, name -> scalar; the loop minimizes their sum.

        The loop logs a term as `train/loss/NAME`. A call without gradients, which only measures the loss, must not
        change the method.
        """
        return {"contrastive": self.info_nce(batch)}

    # ---------------------------------------------------------------- properties that most methods state

    @classmethod
    def capabilities(cls, config: Any) -> Capabilities:
        """Return the method's properties under these settings; for a strategy, without those of its retriever."""
        return Capabilities()

    wraps: ClassVar[bool] = False  # whether it is a strategy; read before the settings
    domain: ClassVar[Literal["videos", "images", "questions"]] = "videos"  # kind of stream that it learns
    # Rows `method:preset` that a sweep runs after its winner, unless the user sets the baselines
    controls: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check_base(cls, config: Any, base: type[Method], base_config: Any) -> None:
        """Check, before anything is built, that the strategy can wrap this retriever under these settings.

        Args:
            config: settings of the strategy.
            base: class of the retriever; `base.capabilities(base_config)` returns its properties.
            base_config: settings of the retriever.

        Raises:
            ValueError: if the strategy cannot wrap it; the message has the reason and the setting to change.
        """

    @cached_property
    def declared(self) -> Capabilities:
        """Properties of this instance, by `capabilities`; for a strategy, combined with those of its retriever.

        Raises:
            ValueError: if `capabilities` needs the settings and the instance does not keep them as `self.config`.
        """
        cls, base = type(self), getattr(self, "base", None)
        if "config" not in vars(self) and getattr(cls.capabilities, "__func__", None) is not _DEFAULT:
            raise ValueError(f"{cls.__name__}: capabilities(config) needs the settings. Set self.config = config.")
        inner = base.declared if cls.wraps and isinstance(base, Method) else None
        return capabilities_of(cls, vars(self).get("config"), inner)


_DEFAULT = Method.capabilities.__func__  # type: ignore[attr-defined]


def l2_normalize(x: Tensor) -> Tensor:
    """Scale vectors x (..., d) to length 1, in float32 for any input precision."""
    return F.normalize(x.float(), dim=-1)
