"""Token reduction by ToMe and TempMe as plug-ins of the vision tower, and `make_reducer`, which builds all reducers.

The other reducers are in evit.py, sta.py, diffrate.py and testa.py.

ToMe: Bolya et al., arXiv:2210.09461. TempMe: "Temporal Token Merging for Efficient Text-Video Retrieval",
arXiv:2409.01156, section 3.2. Details that the paper does not specify follow the released code: class tokens are not
merged, and averages and attention are weighted by sizes.

A reducer is a list of steps, one for each block. The numbers in a step depend on the settings only, so the number of
tokens in every block is known before a run. A reducer is independent of the adapters of the tower;
`combine` joins the `BlockSeams` of both.

Shapes: B videos, T frames, G attention groups (B * frames or clips), N tokens of a group, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from itertools import combinations_with_replacement
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import AttentionTrace, BlockSeams, Seam, Seams, TokenState, VisionTower
from ctvr.methods.layers.reduction.config import (
    AnnealedEViTConfig,
    DiffRateConfig,
    EViTConfig,
    ReducerConfig,
    SearchedDiffRateConfig,
    STAConfig,
    TempMeReducerConfig,
    TESTAConfig,
    ToMeConfig,
)
from ctvr.methods.layers.reduction.diffrate import DiffRate, schedule
from ctvr.methods.layers.reduction.diffrate_search import DiffRateSearch
from ctvr.methods.layers.reduction.evit import EViT
from ctvr.methods.layers.reduction.merge import Move, merge_tokens, most_mergeable, plan_bipartite
from ctvr.methods.layers.reduction.plan import Step, TokenReducer, spread
from ctvr.methods.layers.reduction.sta import STA
from ctvr.methods.layers.reduction.testa import TESTA, frame_rates
from ctvr.methods.settings import SettingError


def tome_schedule(blocks: int, r: int | Sequence[int], inflection: float = 0.0) -> list[int]:
    """Compute the number of tokens that each block merges; `r` is a number for all blocks or a list.

    A list is cut to the number of blocks, or padded with zeros. With inflection c the numbers change linearly over the
    blocks, from low = int(r (1 - c)) to 2 r - low, and are rounded down.
    """
    if not isinstance(r, int):
        return [*r, *[0] * blocks][:blocks]
    low = int(r * (1 - inflection))
    step = (2 * r - 2 * low) / max(1, blocks - 1)
    return [int(low + step * block) for block in range(blocks)]


def tome_steps(
    blocks: int, tokens: int, r: int | Sequence[int], inflection: float = 0.0, classes: int = 1
) -> list[Step]:
    """Build the steps of ToMe, which merges patches within frames in each block.

    Args:
        blocks: number of blocks of the tower.
        tokens: N of a frame, class tokens included.
        r: see `tome_schedule`.
        inflection: see `tome_schedule`.
        classes: number of class tokens of a frame, 0 for UMT's tower.
    """
    steps = []
    for wanted in tome_schedule(blocks, r, inflection):
        steps.append(Step(intra=min(wanted, most_mergeable(tokens, classes))))
        tokens -= steps[-1].intra
    return steps


def tempme_steps(config: TempMeReducerConfig, blocks: int, tokens: int, classes: int = 1) -> list[Step]:
    """Build the steps of TempMe: ImgMe blocks, then ClipMe blocks; blocks between and after them merge within clips.

    A frame has `tokens` tokens, `classes` class tokens included.

    Raises:
        ValueError: if the clip blocks do not fit the tower or the groups.
    """
    groups = config.clip_groups or spread_factors(config.num_frames, min(3, blocks // 2))
    start = blocks - 1 - min(3, blocks // 2)
    clip_blocks = config.clip_blocks or tuple(range(start, start + len(groups)))
    if len(clip_blocks) != len(groups):
        raise SettingError(
            f"<reducer.clip_blocks>={clip_blocks} and <reducer.clip_groups>={groups} must have equally many values; "
            f"set both (for one final clip, the product of groups is <reducer.num_frames>={config.num_frames})"
        )
    _check_blocks("clip_blocks", clip_blocks, blocks)
    small = tokens - classes <= 64
    r = default_r(blocks, tokens, classes) if config.r is None else config.r
    cross = 100 - ((70 if small else 60) if config.keep_cross is None else config.keep_cross)
    intra = 100 - ((90 if small else 80) if config.keep_intra is None else config.keep_intra)
    factor = dict(zip(clip_blocks, groups))
    steps = []
    for block in range(blocks):
        if not clip_blocks or block < clip_blocks[0]:
            step = Step(intra=min(r, most_mergeable(tokens, classes)))
        else:
            group = factor.get(block, 1) if config.join_clips else 1
            tokens, classes = tokens * group, classes * group
            first = min(tokens * cross // 100, most_mergeable(tokens, classes)) if block in factor else 0
            rest = tokens - first
            step = Step(group, first, min(rest * intra // 100, most_mergeable(rest, classes)))
        steps.append(step)
        tokens -= step.cross + step.intra
    return steps


def default_r(blocks: int, tokens: int, classes: int = 1) -> int:
    """Return the paper's r (2 of 49 or 10 of 196 patches for 12 blocks), scaled to a tower's patches and blocks."""
    patches = tokens - classes
    share = 2 / 49 if patches <= 64 else 10 / 196
    return max(1, round(share * patches * 12 / blocks))


def spread_factors(number: int, count: int) -> tuple[int, ...]:
    """Split `number` into at most `count` factors, ascending and as equal as possible: 12, 3 -> 2, 2, 3."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    products = [f for f in combinations_with_replacement(divisors, count) if math.prod(f) == number]
    best = min(products, key=lambda factors: (factors[-1], -factors[0]), default=())
    return tuple(factor for factor in best if factor > 1)


class Reducer(TokenReducer):
    """Reducer that applies a list of steps of ToMe or TempMe; its only parameters are TempMe's clip positions."""

    def __init__(
        self,
        steps: Sequence[Step],
        width: int,
        num_frames: int | None = None,
        positions: Literal["always", "merging", "none"] = "none",
        shared: bool = False,
        proportional: bool = True,
    ) -> None:
        """Build a reducer.

        Args:
            steps: one for each block.
            width: D.
            num_frames: T for which the steps were computed; None if they do not join frames.
            positions: see `TempMeReducerConfig`.
            shared: whether all frames of a video share one merge plan, so that token i has the same image position in
                all of them.
            proportional: see `ToMeConfig`.
        """
        super().__init__()
        self.steps, self.num_frames = list(steps), num_frames
        self.shared, self.proportional = shared, proportional
        self.positions = nn.ParameterDict()  # block -> (number of clips before it, D), initially zero
        clips = num_frames or 0
        for block, step in enumerate(self.steps):
            wanted = positions == "always" or (positions == "merging" and step.cross > 0)
            if step.group > 1 and wanted:
                self.positions[str(block)] = nn.Parameter(torch.zeros(clips, width))
            clips //= step.group

    def _block(self, block: int, step: Step) -> BlockSeams:
        joins = step.group > 1 or step.cross > 0
        if not joins and step.intra == 0:
            return BlockSeams()
        return BlockSeams(
            before=partial(self._join, block) if joins else None,
            between=partial(self._merge, step.intra) if step.intra > 0 else None,
            wants_keys=step.intra > 0,
            breaks_alignment=joins or not self.shared,
            leaves_classes=True,
        )

    def _join(self, block: int, x: Tensor, state: TokenState) -> Tensor:
        """Join successive clips and merge across them: (G, N, D) -> (G / group, M, D)."""
        step = self.steps[block]
        if self.num_frames is not None and state.frames != self.num_frames:
            raise SettingError(
                f"<reducer.num_frames> is {self.num_frames}, but a video has {state.frames} frames",
                f"Set <reducer.num_frames>={state.frames} (it must equal data.num_frames).",
            )
        state.proportional = self.proportional
        clips, classes, old_tokens = len(x) // state.batch, state.classes, x.shape[1]
        x = _regroup(x, step.group, classes)
        state.classes = state.protected = classes * step.group
        if state.sizes is not None:
            state.sizes = _regroup(state.sizes, step.group, classes)
        plan = plan_bipartite(x, step.cross, state.protected)  # tokens are compared before clip positions are added
        if str(block) in self.positions:
            p = self.positions[str(block)].to(x.dtype)[:, None]  # (clips, 1, D)
            p = _regroup(p.expand(clips, old_tokens, -1), step.group, classes)
            x = (x.unflatten(0, (state.batch, -1)) + p).flatten(0, 1)
        x, state.sizes = merge_tokens(x, state.sizes, plan)
        state.moves.append(Move(plan, step.group, classes))
        return x

    def _merge(self, intra: int, x: Tensor, attended: AttentionTrace, state: TokenState) -> Tensor:
        """Merge tokens with similar attention keys within each group: (G, N, D) -> (G, N - intra, D)."""
        assert attended.keys is not None
        state.proportional = self.proportional
        keys = attended.keys.detach()
        if self.shared:
            keys = F.normalize(keys.float(), dim=-1).unflatten(0, (state.batch, -1))  # (B, T, N, C)
            plan = plan_bipartite(keys.mean(dim=1), intra, state.protected).repeated(keys.shape[1])
        else:
            plan = plan_bipartite(keys, intra, state.protected)
        x, state.sizes = merge_tokens(x, state.sizes, plan)
        state.moves.append(Move(plan))
        return x


def _regroup(x: Tensor, group: int, classes: int) -> Tensor:
    """Join every `group` successive groups, class tokens first: (G, N, D) -> (G / group, group * N, D)."""
    if group == 1:
        return x
    x = x.unflatten(0, (-1, group))
    return torch.cat([x[:, :, :classes].flatten(1, 2), x[:, :, classes:].flatten(1, 2)], dim=1)


def make_reducer(config: ReducerConfig, vision: VisionTower) -> TokenReducer:
    """Build the reducer that the settings select; defaults depend on the tower.

    Raises:
        ValueError: if the schedule does not fit the tower.
    """
    blocks, tokens, classes = len(vision.blocks), vision.num_tokens, vision.classes
    if vision.reducers is not None and config.name not in vision.reducers:
        *others, last = vision.reducers
        known = f"{', '.join(others)} or {last}" if others else last
        raise SettingError(
            f"<reducer.name>={config.name}: tokens are merged around CLIP's class token, which this tower does not use",
            write=f"<reducer.name>={known}",
        )
    if isinstance(config, TempMeReducerConfig):
        steps = tempme_steps(config, blocks, tokens, classes)
        return Reducer(steps, vision.width, config.num_frames, config.positions, proportional=config.proportional)
    if isinstance(config, EViTConfig):
        stages = _check_blocks("stages", config.stages or spread(blocks, 4, 1), blocks)
        anneal = (config.anneal_from, config.anneal_steps) if isinstance(config, AnnealedEViTConfig) else (0, 0)
        return EViT(blocks, tokens, stages, config.keep_rate, config.fuse, *anneal)
    if isinstance(config, STAConfig):
        stages = _check_blocks("stages", config.stages or spread(blocks, 3, 0), blocks)
        return STA(blocks, tokens, stages, sta_rates(config.r, stages, tokens - 1))
    if isinstance(config, TESTAConfig):
        late = tuple(range(blocks - max(1, blocks // 3), blocks))
        stages = _check_blocks("stages", config.stages or late, blocks)
        frames = dict(zip(stages, frame_rates(config.r_frames, len(stages))))
        steps = tome_steps(blocks, tokens, default_r(blocks, tokens) if config.r is None else config.r)
        form = config.temporal_rank, config.temporal_gate, config.one_class
        return TESTA(vision.blocks, [step.intra for step in steps], frames, *form)  # type: ignore[arg-type]
    if isinstance(config, SearchedDiffRateConfig) and config.search_macs is not None:
        return DiffRateSearch(vision, config.search_macs, config.search_step)
    if isinstance(config, DiffRateConfig):
        pruned, merged = (config.prune_to, config.merge_to) if config.prune_to else schedule(blocks, tokens)
        if len(pruned) != blocks:
            counts = f"{len(pruned)} values each, but the backbone has {blocks} blocks"
            raise SettingError(f"<reducer.prune_to> and <reducer.merge_to> have {counts}")
        return DiffRate(tokens, pruned, merged, config.proportional)
    if isinstance(config, ToMeConfig):
        r = default_r(blocks, tokens, classes) if config.r is None else config.r
        steps = tome_steps(blocks, tokens, r, config.inflection, classes)
        shared = config.name == "tome_shared"
        return Reducer(steps, vision.width, shared=shared, proportional=config.proportional)
    return Reducer([Step()] * blocks, vision.width)


def _check_blocks(name: str, places: tuple[int, ...], blocks: int) -> tuple[int, ...]:
    if places and not 0 <= places[0] <= places[-1] < blocks:
        raise ValueError(f"reducer.{name}={places}: the backbone has blocks 0..{blocks - 1}. Use these.")
    return places


def sta_rates(r: int | Sequence[int] | None, stages: Sequence[int], patches: int) -> tuple[int, ...]:
    """Return the patches removed per frame in each stage; if r is None, 10, then 9 of 49 patches, scaled to `patches`.

    Raises:
        ValueError: if a list r does not have one value per stage.
    """
    if r is None:
        return tuple(max(1, round((9 if turn else 10) / 49 * patches)) for turn in range(len(stages)))
    if isinstance(r, int):
        return (r,) * len(stages)
    if len(r) != len(stages):
        listed = ",".join(map(str, r))
        raise SettingError(f"<reducer.r>={listed}: <reducer.name>=sta has {len(stages)} stages; set one value for each")
    return tuple(r)


def combine(outer: Seams, inner: Seams) -> list[BlockSeams]:
    """Combine the hooks of two plug-ins, block by block; `outer` acts first in `before` and last everywhere else.

    Pass a reducer as `outer`, so that prompts that `inner` inserts are removed before clips are joined.

    Raises:
        ValueError: if both merge tokens or replace the attention of a block, if their numbers of blocks differ, or if
            one needs token i of neighboring frames at the same position but the other merges each frame differently.
    """
    if len(outer) != len(inner):
        raise ValueError(f"cannot combine plug-ins of towers with {len(outer)} and {len(inner)} blocks.")
    pairs = [(a or BlockSeams(), b or BlockSeams()) for a, b in zip(outer, inner)]
    broken: int | None = None
    for block, (a, b) in enumerate(pairs):
        if broken is None and (a.breaks_alignment or b.breaks_alignment):
            broken = block
        if broken is not None and (a.needs_alignment or b.needs_alignment):
            raise ValueError(
                f"block {block} compares token i of neighboring frames, but from block {broken} on the reducer merges "
                "every frame differently. Set reducer.name=tome_shared (one plan for all frames of a video) or "
                "reducer.name=none."
            )
        if a.between is not None and b.between is not None:
            raise ValueError(f"two plug-ins change the tokens of block {block} after attention. Use one of them.")
        if a.mix is not None and b.mix is not None:
            raise ValueError(f"two plug-ins replace the attention of block {block}. Use one of them.")
    return [_combine_block(a, b) for a, b in pairs]


def _combine_block(a: BlockSeams, b: BlockSeams) -> BlockSeams:
    merged: dict[str, Any] = {}
    for field in fields(BlockSeams):
        first, second = getattr(a, field.name), getattr(b, field.name)
        if field.name == "by_token":
            merged[field.name] = first and second
        elif isinstance(field.default, bool) or first is None or second is None:
            merged[field.name] = first or second
        elif field.name == "before":
            merged[field.name] = _then(first, second)
        elif field.name == "after":
            merged[field.name] = _then(second, first)
        else:
            merged[field.name] = _refine(second, first)
    if all(any(seam is not None for seam in (each.qkv, each.q, each.k, each.v)) for each in (a, b)):
        merged["fold"] = None  # a fold is equivalent to the projections of one plug-in only
    return BlockSeams(**merged)


def _then(first: Seam, second: Seam) -> Callable[[Tensor, TokenState], Tensor]:
    return lambda x, state: second(first(x, state), state)


def _refine(first: Seam, second: Seam) -> Callable[[Tensor, Tensor, TokenState], Tensor]:
    return lambda y, out, state: second(y, first(y, out, state), state)
