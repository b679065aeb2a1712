"""Shuffling of training pairs, and derivation of seeds."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ctvr.orchestrator.digests import digest_of


def seed_of(*parts: object) -> int:
    """Derive a 60-bit seed from the texts of all parts."""
    return int(digest_of([str(part) for part in parts])[:15], 16)


def index_batches(
    videos: Sequence[int], size: int, seed: int, unique_videos: bool = False, one_per_video: bool = False
) -> list[list[int]]:
    """Shuffle pairs into batches of pair indices; equal seeds give equal batches on every worker.

    Args:
        videos: video index of each pair.
        size: pairs per batch; the last batch may be smaller.
        seed: seed of the order.
        unique_videos: whether two pairs of one video are kept out of the same batch; batches may then be smaller.
        one_per_video: whether to keep only one random pair of each video.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(videos), generator=generator).tolist()
    if one_per_video:
        first: dict[int, int] = {}
        for pair in order:
            first.setdefault(videos[pair], pair)
        order = [pair for pair in order if first[videos[pair]] == pair]
    if not unique_videos:
        return [order[start : start + size] for start in range(0, len(order), size)]
    batches: list[list[int]] = []
    room: list[tuple[list[int], set[int]]] = []  # batches that are not full yet, with their videos
    for pair in order:
        chosen = next((entry for entry in room if videos[pair] not in entry[1]), None)
        if chosen is None:
            chosen = ([], set())
            batches.append(chosen[0])
            room.append(chosen)
        chosen[0].append(pair)
        chosen[1].add(videos[pair])
        room = [entry for entry in room if len(entry[0]) < size]
    return batches
