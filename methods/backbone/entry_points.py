"""Backbones of other installed packages: entry points `ctvr.backbones`, NAME -> a callable that returns a torch module.

The module has `encode_image`, `encode_text`, `tokenize` and `image_size`, see `Tower`. Methods can act in its blocks
only if it has hook points as well. A model of open_clip's classes has all of these members. The encoders of other
modules may use any weights, so each tower gets a copy of the module with only the weights that its encoder reads.

Shapes: G images, B videos or captions, T frames, L tokens of one caption, N tokens of one image, S side of an image in
pixels, D width of a tower, d joint embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.architectures import SHIPPED, UMT, VECTORS, open_clip_folder
from ctvr.methods.backbone.blocks import Block, Seams, TokenState, record, run_blocks
from ctvr.methods.backbone.checkpoint import check, read_checkpoint
from ctvr.methods.backbone.clip import Clip, TextTower, VisionTower
from ctvr.methods.backbone.openclip_towers import EndMarked, text_of, to_open_clip, unmark, vision_of
from ctvr.methods.backbone.own_model import is_of_transformers
from ctvr.methods.backbone.weight_settings import WeightSettings
from ctvr.methods.backbone.weights import reason_of
from ctvr.methods.plug_ins import installed, owners_of
from ctvr.methods.settings import SettingError
from ctvr.methods.user_code import place_in_user_code
from ctvr.methods.user_paths import expand_path

MARK = 2**30  # id of the end of a caption, above all ids of a vocabulary
SCALE = 1 / 0.07  # exp(logit_scale) of a module without one, as CLIP's before pre-training
_IMAGE, _TEXT = ("image_blocks", "embed_image", "pool_image"), ("text_blocks", "embed_text", "pool_text")
_CLOSE = 1e-4  # largest relative difference between an encoder and its hook points


class Tower(Protocol):
    """The members of a module that an entry point returns.

    Further members are optional; defaults are in brackets. `mean`, `std` (3 numbers each), `resize_mode` and
    `interpolation` are for images; `logit_scale` is the log of 1 / temperature, `pad` the padding id (0). Hook points::

        image_blocks (pre-norm blocks of open_clip or timm)     text_blocks
        embed_image(images) -> (G, N, D)                        embed_text(ids) -> (B, L, D)
        pool_image(tokens) -> (G, d)                            pool_text(tokens, ids) -> (B, d)
        image_classes, leading class tokens among the N (0)     text_is_causal (False)
    """

    image_size: int  # S

    def encode_image(self, images: Tensor) -> Tensor:
        """Embed normalized images: (G, 3, S, S) -> (G, d), not normalized."""

    def encode_text(self, ids: Tensor) -> Tensor:
        """Embed captions: (B, L) int64 -> (B, d), not normalized."""

    def tokenize(self, captions: list[str]) -> Tensor:
        """Return the token ids (B, L) int64 of B captions; L does not depend on the captions."""


def entry_point(name: str) -> EntryPoint | None:
    """Return the entry point that provides the backbone `name`, or None.

    Raises:
        SettingError: if two packages, or a package and ctvr or open_clip, have a backbone of this name.
    """
    found = installed("backbones").get(name)
    if found is None:
        return None
    owners = owners_of("backbones", name)
    if name in (*SHIPPED, *UMT, VECTORS) or (open_clip_folder() / f"{name}.json").is_file():
        owners.append("ctvr" if name in (*SHIPPED, *UMT, VECTORS) else "open_clip")
    if len(owners) > 1:
        raise SettingError(
            f"<name>={name} is a backbone of {' and of '.join(owners)}", f"Rename it in {owners[0]}, or uninstall that."
        )
    return found


def load_entry_point(point: EntryPoint, weights: str, seed: int, sha256: str = "") -> Clip:
    """Build a backbone from an entry point.

    Args:
        point: see `entry_point`.
        weights: `shipped` for the module's own, or a file or folder with the names of its `state_dict()`.
        seed: seed of random numbers that the package draws.
        sha256: SHA-256 of a pickle.

    Raises:
        ValueError: one line, if the package cannot be imported or does not return a module as in `Tower`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            source = point.load()()
        except Exception as error:  # the package may raise any exception
            raise _fault(point, f"cannot be loaded ({_said(error)})", "Correct or reinstall the package.") from error
    if not isinstance(source, nn.Module):
        raise _fault(point, f"returned a {type(source).__name__}", "Return a torch.nn.Module.")
    members = ("encode_image", "encode_text", "tokenize", "image_size")
    if missing := [each for each in members if not hasattr(source, each)]:
        raise _fault(point, f"returned a module without {', '.join(missing)}", "Add them.")
    if weights != "shipped":
        found = read_checkpoint(expand_path(weights), sha256, ())
        check(found, source.state_dict(), weights, point.name)
        source.load_state_dict(found)
    try:
        return _make(point, source.eval())
    except SettingError:
        raise
    except Exception as error:  # of the package's code on one image and one caption
        fault = f"fails on one image and one caption ({_said(error)})"
        raise _fault(point, fault, "Correct the package.") from error


def _said(error: Exception) -> str:
    place = place_in_user_code(error)
    return f"{type(error).__name__}: {reason_of(error)}{f', {place}' if place else ''}"


def _fault(point: EntryPoint, fault: str, remedy: str) -> SettingError:
    return SettingError(f"<name>={point.name}: {point.value} {fault}", remedy)


def _make(point: EntryPoint, source: Any) -> Clip:
    named = {field.name for field in fields(WeightSettings)} - {"activation", "context_length"}
    own = WeightSettings(**{name: getattr(source, name) for name in named if hasattr(source, name)})
    images = torch.linspace(-1, 1, 3 * source.image_size**2).view(1, 3, source.image_size, -1)
    example = _Example(images, source.tokenize(["a red box"]))
    shapes = [tuple(each.shape) for each in (source.tokenize(["a", "a red box on a table"]), example.ids)]
    if not (len(shapes[0]) == len(shapes[1]) == 2 and shapes[0] == (2, shapes[1][1])):
        raise _fault(point, f"tokenizes captions to {shapes[0]} and {shapes[1]} ids", "Return ids (B, L), L constant.")
    with torch.no_grad():
        image, text = source.encode_image(example.images), source.encode_text(example.ids)
    if image.ndim != 2 or image.shape != text.shape:
        widths = f"encodes an image as {tuple(image.shape)} and a caption as {tuple(text.shape)}"
        raise _fault(point, widths, "Return (G, d) and (B, d) of one width d.")
    from open_clip import CLIP, CustomTextCLIP

    is_open_clips = isinstance(source, CLIP | CustomTextCLIP)
    if is_open_clips:
        vision, words = vision_of(source, point.name), text_of(source, is_of_transformers(source.tokenize))
    else:
        vision, words = OwnVision(point, source, example, image), OwnText(point, source, example, text)
        names = [{name for name, _ in each.source.named_parameters()} for each in (vision, words)]
        blocks = [{id(each) for each in getattr(source, kind[0], ())} for kind in (_IMAGE, _TEXT)]
        if (shared := sorted(names[0] & names[1])) or blocks[0] & blocks[1]:
            what = shared[0] if shared else _IMAGE[0]
            raise _fault(
                point, f"reads {what} for images and for captions", "Use separate weights for the two encoders."
            )
    clip = OwnClip(point.name, source, vision, words, own).eval()
    with torch.no_grad():
        _require_equal(point, clip.vision(example.images[None])[0], image, () if is_open_clips else _IMAGE)
        _require_equal(point, clip.text(clip.tokenize(["a red box"])), text, () if is_open_clips else _TEXT)
    return clip


@dataclass
class _Example:
    images: Tensor  # (1, 3, S, S)
    ids: Tensor  # (1, L)


def _part(point: EntryPoint, source: Any, run: Callable[[Any], Tensor], what: str) -> Any:
    """Return a copy of a module with only those weights that get a gradient from the output of `run`.

    Raises:
        SettingError: if no weight gets a gradient.
    """
    part = copy.deepcopy(source)
    flags = {name: parameter.requires_grad for name, parameter in part.named_parameters()}
    named = dict(part.requires_grad_(True).named_parameters())
    with torch.enable_grad():
        found = run(part).float().sum()
    if not found.requires_grad:
        raise _fault(point, f"computes {what} without gradients", "Remove torch.no_grad() and detach().")
    gradients = torch.autograd.grad(found, list(named.values()), allow_unused=True)
    for (name, parameter), gradient in zip(named.items(), gradients):
        parameter.requires_grad_(flags[name])
        if gradient is None:
            owner, _, leaf = name.rpartition(".")
            part.get_submodule(owner)._parameters[leaf] = None
    return part


def _blocks(point: EntryPoint, source: Any, names: Sequence[str]) -> nn.ModuleList:
    """Rebuild the blocks of a module with hook points; the result is empty if the module lacks `names`.

    Raises:
        SettingError: if the module has only some of `names`, or blocks that cannot be rebuilt.
    """
    there = [name for name in names if hasattr(source, name)]
    if there and (missing := [name for name in names if name not in there]):
        raise _fault(point, f"returned a module with {there[0]}, but without {', '.join(missing)}", "Add them.")
    blocks = list(getattr(source, names[0])) if there else []
    is_ours = all(hasattr(each, "ln_1") and hasattr(getattr(each, "attn", None), "in_proj_weight") for each in blocks)
    try:
        return nn.ModuleList(
            Block(copy.deepcopy(each) if is_ours else to_open_clip(each, point.name)) for each in blocks
        )
    except (ValueError, AttributeError) as error:
        kind = type(blocks[0]).__name__
        raise _fault(point, f"{names[0]} are {kind}, not pre-norm blocks", f"Omit {names[0]}.") from error


def _heads(blocks: Any) -> int:
    return int(blocks[0].attn.heads)


def _require_equal(point: EntryPoint, found: Tensor, expected: Tensor, names: Sequence[str]) -> None:
    """Reject an encoder whose features differ from those of its hook points; `names` is () for open_clip's classes."""
    if torch.allclose(found, expected, rtol=_CLOSE, atol=_CLOSE * float(expected.abs().max())):
        return
    if not names:
        fault = "returned a model of open_clip whose encoders compute other features than its blocks"
        raise _fault(point, fault, "Return a torch.nn.Module that is not a subclass of open_clip's CLIP.")
    text = f"{names[1]}, {names[0]} and {names[2]} together differ from its encoder"
    raise _fault(point, text, f"Correct or omit {names[0]}.")


class OwnVision(VisionTower):
    """The image encoder of an entry point, with hook points in its blocks if the module offers them."""

    is_plain = False
    reducers = ("none",)
    lacks = frozenset({"embed", "read", "conv1"})

    def __init__(self, point: EntryPoint, source: Any, example: _Example, expected: Tensor) -> None:
        nn.Module.__init__(self)
        self.blocks = _blocks(point, source, _IMAGE)
        self.classes = int(getattr(source, "image_classes", 0))
        has_blocks = bool(len(self.blocks))
        if has_blocks:
            self.source = _part(point, source, lambda part: part.pool_image(part.embed_image(example.images)), "images")
        else:
            self.source = _part(point, source, lambda part: part.encode_image(example.images), "images")
        self.embed_dim, self.num_tokens = int(expected.shape[-1]), 1
        self.width, self.heads = self.embed_dim, 1
        if has_blocks:
            self.num_tokens, self.width = map(int, self.source.embed_image(example.images).shape[1:])
            self.heads = _heads(self.blocks)
        self.entry, self.takes_features = 0, False

    def embed(self, frames: Tensor) -> tuple[Tensor, TokenState]:
        batch, num_frames = frames.shape[:2]
        state = TokenState(batch, num_frames, classes=self.classes, protected=self.classes)
        if frames.ndim == 4:
            state.start = self.entry
            return frames.flatten(0, 1), state
        return self.source.embed_image(frames.flatten(0, 1)), record(state)

    @torch.no_grad()
    def prefix(self, frames: Tensor, blocks: int) -> Tensor:
        """Run the first `blocks` blocks without seams: (B, T, 3, S, S) -> (B, T, N, D)."""
        x, state = self.embed(frames)
        return run_blocks(self.blocks[:blocks], x, None, state, causal=False).unflatten(0, frames.shape[:2])

    def forward(self, frames: Tensor, seams: Seams | None = None) -> Tensor:
        """Embed each frame: (B, T, 3, S, S), or stored tokens (B, T, N, D), -> (B, T, d), not normalized."""
        if not len(self.blocks):
            found: Tensor = self.source.encode_image(frames.flatten(0, 1))
        else:
            x, state = self.embed(frames)
            found = self.source.pool_image(run_blocks(self.blocks, x, seams, state, causal=False))
        return found.unflatten(0, frames.shape[:2])


class OwnText(TextTower):
    """The caption encoder of an entry point, with hook points in its blocks if the module offers them.

    Captions have the format of `EndMarked`, as for all towers; the module gets the ids of its own tokenizer.
    """

    lacks = frozenset({"embed", "read", "hidden", "project", "token_embedding"})

    def __init__(self, point: EntryPoint, source: Any, example: _Example, expected: Tensor) -> None:
        nn.Module.__init__(self)
        self.blocks = _blocks(point, source, _TEXT)
        ids = example.ids
        if len(self.blocks):
            self.source = _part(point, source, lambda part: part.pool_text(part.embed_text(ids), ids), "captions")
        else:
            self.source = _part(point, source, lambda part: part.encode_text(ids), "captions")
        self.causal = bool(getattr(source, "text_is_causal", False))
        self.context_length, self.pad, self.words = int(ids.shape[1]), int(getattr(source, "pad", 0)), MARK - 1
        self.width, self.heads = int(expected.shape[-1]), 1
        if len(self.blocks):
            self.width = int(self.source.embed_text(ids).shape[-1])
            self.heads = _heads(self.blocks)

    def forward(self, tokens: Tensor, seams: Seams | None = None) -> Tensor:
        """Embed captions with an end mark: (B, L) int64 -> (B, d), not normalized."""
        ids = unmark(tokens, self.context_length, self.pad)
        if not len(self.blocks):
            found: Tensor = self.source.encode_text(ids)
            return found
        end = torch.full((len(ids),), self.context_length - 1, device=ids.device)
        state = TokenState(len(ids), eot=end, protected=self.context_length)
        x = run_blocks(self.blocks, self.source.embed_text(ids), seams, state, self.causal)
        pooled: Tensor = self.source.pool_text(x, ids)
        return pooled


class OwnClip(Clip):
    """An image tower and a text tower of an entry point, in place of CLIP's."""

    def __init__(self, name: str, source: Any, vision: VisionTower, text: TextTower, own: WeightSettings) -> None:
        nn.Module.__init__(self)
        self.name, self.vision, self.text, self.weight_settings = name, vision, text, own
        scale = torch.as_tensor(getattr(source, "logit_scale", torch.tensor(SCALE).log()))
        self.logit_scale = nn.Parameter(scale.detach().clone().float().reshape(()))
        is_clips = type(text) is TextTower  # it reads the ids of CLIP's tokenizer
        self.tokenize = source.tokenize if is_clips else EndMarked(source.tokenize, text)
        self.mean, self.std = tuple(own.mean), tuple(own.std)
        self.embed_dim, self.image_size = vision.embed_dim, int(source.image_size)
