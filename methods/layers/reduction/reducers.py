"""Token reduction as a plug-in of the vision tower: none, ToMe, ToMe with one plan for all frames, TempMe.

Others have a file each: evit.py, sta.py, diffrate.py, testa.py. `make_reducer` builds them all.

ToMe: Bolya et al., arXiv:2210.09461. TempMe: "Temporal Token Merging for Efficient Text-Video Retrieval",
arXiv:2409.01156, section 3.2; where the paper does not specify (class tokens stay apart, sizes weigh the averages
and the attention), the released code is followed.

A reducer is a list of steps, one for each block. The numbers in a step depend on the settings alone, so the tokens
of every block are known before a run (`token_log`). A reducer is independent of the adapters of the tower;
`combine` joins the seams of both.

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
    """Compute the number of tokens that each block merges, from ToMe's r: a number, a list, a pair (r, inflection).

    A list is cut or padded with zeros. With an inflection c the numbers change linearly from int(r (1 - c)) to the
    value at the same distance on the other side of r, cut to whole numbers.
    """
    if not isinstance(r, int):
        return [*r, *[0] * blocks][:blocks]
    low = int(r * (1 - inflection))
    step = (2 * r - 2 * low) / max(1, blocks - 1)
    return [int(low + step * block) for block in range(blocks)]


def tome_steps(
    blocks: int, tokens: int, r: int | Sequence[int], inflection: float = 0.0, classes: int = 1
) -> list[Step]:
    """Merge patches of every frame in every block, at most as many as remain.

    Args:
        blocks: number of blocks of the tower.
        tokens: N of a frame, class tokens included.
        r: see `tome_schedule`.
        inflection: see `tome_schedule`.
        classes: class tokens of a frame; UMT's tower has none.
    """
    steps = []
    for wanted in tome_schedule(blocks, r, inflection):
        steps.append(Step(intra=min(wanted, most_mergeable(tokens, classes))))
        tokens -= steps[-1].intra
    return steps


def tempme_steps(config: TempMeReducerConfig, blocks: int, tokens: int, classes: int = 1) -> list[Step]:
    """Build TempMe's schedule: ImgMe blocks, then ClipMe blocks; later blocks merge within clips only.

    `tokens` are those of a frame, including `classes` class tokens.

    Raises:
        ValueError: if the clip blocks do not fit the tower or the groups.
    """
    groups = config.clip_groups or spread_factors(config.num_frames, min(3, blocks // 2))
    start = blocks - 1 - min(3, blocks // 2)
    clip_blocks = config.clip_blocks or tuple(range(start, start + len(groups)))
    if len(clip_blocks) != len(groups):
        raise SettingError(
            f"<reducer.clip_blocks>={clip_blocks} and <reducer.clip_groups>={groups} must be equally many; give both "
            f"(the groups multiply to <reducer.num_frames>={config.num_frames} to end with one clip)"
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
    """Return the paper's r for a tower of 12 blocks (2 of 49 patches, 10 of 196), in proportion for others."""
    patches = tokens - classes
    share = 2 / 49 if patches <= 64 else 10 / 196
    return max(1, round(share * patches * 12 / blocks))


def spread_factors(number: int, count: int) -> tuple[int, ...]:
    """Factor `number` into at most `count` rising factors, as equal as possible: 12, 3 -> 2, 2, 3."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    products = [f for f in combinations_with_replacement(divisors, count) if math.prod(f) == number]
    best = min(products, key=lambda factors: (factors[-1], -factors[0]), default=())
    return tuple(factor for factor in best if factor > 1)


class Reducer(TokenReducer):
    """Applies a list of steps. Its only parameters are TempMe's clip positions."""

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
            num_frames: T that the steps were computed for; None if they never join frames.
            positions: when learned positions of the clip within the video are added to its tokens.
            shared: all frames of a video merge the same positions, so that token i has the same position in all.
            proportional: see `ReducerConfig`.
        """
        super().__init__()
        self.steps, self.num_frames = list(steps), num_frames
        self.shared, self.proportional = shared, proportional
        self.positions = nn.ParameterDict()  # block -> (clips entering it, D), zero at first
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
        """Join neighbouring clips and merge across them: (G, N, D) -> (G / group, M, D)."""
        step = self.steps[block]
        if self.num_frames is not None and state.frames != self.num_frames:
            raise SettingError(
                f"<reducer.num_frames> is {self.num_frames}, but a video has {state.frames} frames",
                f"Write <reducer.num_frames>={state.frames} (it must equal data.num_frames).",
            )
        state.proportional = self.proportional
        clips, classes, old_tokens = len(x) // state.batch, state.classes, x.shape[1]
        x = _regroup(x, step.group, classes)
        state.classes = state.protected = classes * step.group
        if state.sizes is not None:
            state.sizes = _regroup(state.sizes, step.group, classes)
        plan = plan_bipartite(x, step.cross, state.protected)  # compared before positions distinguish clips
        if str(block) in self.positions:
            p = self.positions[str(block)].to(x.dtype)[:, None]  # (clips, 1, D)
            p = _regroup(p.expand(clips, old_tokens, -1), step.group, classes)
            x = (x.unflatten(0, (state.batch, -1)) + p).flatten(0, 1)
        x, state.sizes = merge_tokens(x, state.sizes, plan)
        state.moves.append(Move(plan, step.group, classes))
        return x

    def _merge(self, intra: int, x: Tensor, attended: AttentionTrace, state: TokenState) -> Tensor:
        """Merge within each group, compared by the attention keys: (G, N, D) -> (G, N - intra, D)."""
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
    """Join `group` neighbours, all class tokens first: (G, N, D) -> (G / group, group * N, D)."""
    if group == 1:
        return x
    x = x.unflatten(0, (-1, group))
    return torch.cat([x[:, :, :classes].flatten(1, 2), x[:, :, classes:].flatten(1, 2)], dim=1)


def make_reducer(config: ReducerConfig, vision: VisionTower) -> TokenReducer:
    """Build the reducer of the settings, with a schedule that fits the tower.

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
            counts = f"{len(pruned)} numbers each, the backbone has {blocks} blocks."
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
        raise ValueError(f"reducer.{name}={places}: the backbone has blocks 0..{blocks - 1}.")
    return places


def sta_rates(r: int | Sequence[int] | None, stages: Sequence[int], patches: int) -> tuple[int, ...]:
    """Return the patches that leave each frame in each stage; None: 10, then 9 of 49, or in proportion.

    Raises:
        ValueError: if there is not one number per stage.
    """
    if r is None:
        return tuple(max(1, round((9 if turn else 10) / 49 * patches)) for turn in range(len(stages)))
    if isinstance(r, int):
        return (r,) * len(stages)
    if len(r) != len(stages):
        listed = ",".join(map(str, r))
        raise SettingError(
            f"<reducer.r>={listed}: <reducer.name>=sta has {len(stages)} stages; write a number for each"
        )
    return tuple(r)


def combine(outer: Seams, inner: Seams) -> list[BlockSeams]:
    """Join the seams of two plug-ins, block by block; `outer` is first in `before` and last everywhere else.

    A reducer is `outer`: prompts that `inner` inserts are thus removed before clips are joined.

    Raises:
        ValueError: if both merge tokens, if they belong to different towers, or if one needs token i of
            neighbouring frames to be at the same position and the other merges every frame differently.
    """
    if len(outer) != len(inner):
        raise ValueError(f"seams for {len(outer)} and for {len(inner)} blocks belong to different towers.")
    pairs = [(a or BlockSeams(), b or BlockSeams()) for a, b in zip(outer, inner)]
    broken: int | None = None
    for block, (a, b) in enumerate(pairs):
        if broken is None and (a.breaks_alignment or b.breaks_alignment):
            broken = block
        if broken is not None and (a.needs_alignment or b.needs_alignment):
            raise ValueError(
                f"block {block} compares token i of neighbouring frames, but from block {broken} on the reducer merges "
                "every frame in its own way. Write reducer.name=tome_shared (same places in all frames) or "
                "reducer.name=none."
            )
        if a.between is not None and b.between is not None:
            raise ValueError(f"both parts change the tokens of block {block} after attention; use one reducer.")
        if a.mix is not None and b.mix is not None:
            raise ValueError(f"both parts replace the attention of block {block}; use one of them.")
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
        merged["fold"] = None  # it is equivalent to one of them only
    return BlockSeams(**merged)


def _then(first: Seam, second: Seam) -> Callable[[Tensor, TokenState], Tensor]:
    return lambda x, state: second(first(x, state), state)


def _refine(first: Seam, second: Seam) -> Callable[[Tensor, Tensor, TokenState], Tensor]:
    return lambda y, out, state: second(y, first(y, out, state), state)
