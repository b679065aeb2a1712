"""Random split of the common items: a sample, to which maps are fitted, and items on which queries are measured.

Four fifths of the sample fit the maps, one fifth selects their kind. Shapes: S pairs of a sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.migration.inputs import Queries, VectorSet
from ctvr.orchestrator.migration.maps import fit_maps, transposed
from ctvr.orchestrator.migration.search import Index, Measured, measure

SAMPLE, LEAST_SAMPLE = 2000, 25
CHECKED = 5  # one in CHECKED sampled items is used to select the kind of a map
CAPTIONS = 2  # largest mean number of captions per sampled item
LEAST_QUERIES = 20


@dataclass(frozen=True)
class Sample:
    """Pairs of vectors by the old and the new embedder, to fit maps, and further pairs to select the kind of map.

    Attributes:
        target: item of each checked caption among the checked items; None if the pairs are items.
    """

    old: Tensor
    new: Tensor
    checked_old: Tensor
    checked_new: Tensor
    target: Tensor | None = None


def fit_both(items: Sample, texts: Sample | None) -> tuple[Measured, dict[str, str]]:
    """Fit maps of each kind in both directions, and select a kind for "map queries" and for "map index".

    Maps of queries are fitted to captions if these are given. The kind with the best result on the
    checked items is selected; of equal kinds, the first.
    """
    index_maps = fit_maps(items.old, items.new)
    source = texts or items
    query_maps = fit_maps(source.new, source.old) | {"transposed": transposed(index_maps["low_rank"])}
    rows = torch.arange(len(items.checked_old))
    target = rows if source.target is None else source.target
    checks = Measured(source.checked_new, None, target, target, source.target is not None, query_maps, index_maps)
    found = measure(Index(items.checked_old, items.checked_new, (rows, rows)), checks)
    maps = {"map queries": query_maps, "map index": index_maps}
    return checks, {way: max(maps[way], key=lambda kind: float(found[way, kind].mean())) for way in maps}


def split_ids(ids: list[str], asked: int | None, draw: np.random.Generator) -> tuple[list[str], list[str]]:
    """Return the sampled and the measured ids, each in the order of the set; `asked` is the requested sample size."""
    most = len(ids) // 2
    if asked is not None and asked > most:
        what = f"must be at most half of the {len(ids)} common items, because the others are measured"
        raise ConfigError(what, "--sample", asked, f"Use {most}.")
    chosen = np.zeros(len(ids), dtype=bool)
    chosen[draw.permutation(len(ids))[: min(asked or SAMPLE, most)]] = True
    return [k for k, c in zip(ids, chosen) if c], [k for k, c in zip(ids, chosen) if not c]


def rows_of(vectors: VectorSet, ids: Iterable[str]) -> Tensor:
    return torch.tensor([vectors.places[key] for key in ids], dtype=torch.int64)


def item_sample(old: VectorSet, new: VectorSet, sampled: list[str]) -> Sample:
    is_checked = torch.arange(len(sampled)) % CHECKED == CHECKED - 1
    pair = [torch.from_numpy(each.vectors[rows_of(each, sampled).numpy()]) for each in (old, new)]
    fitted, checked = ([each[part] for each in pair] for part in (~is_checked, is_checked))
    return Sample(fitted[0], fitted[1], checked[0], checked[1])


def _captions_of(old: VectorSet, new: VectorSet, ids: list[str]) -> list[tuple[int, str]]:
    """Return (index of the id, caption) for the captions that an item has in both sets."""
    return [
        (place, text)
        for place, key in enumerate(ids)
        for text in dict.fromkeys(old.captions[key])
        if text in new.captions[key] and text in old.texts and text in new.texts
    ]


def _text_vectors(vectors: VectorSet, texts: Iterable[str]) -> Tensor:
    return torch.from_numpy(vectors.text_vectors[[vectors.texts[text] for text in texts]])


def measured_queries(
    old: VectorSet,
    new: VectorSet,
    sampled: list[str],
    measured: list[str],
    past: Queries | None,
    most: int,
    draw: np.random.Generator,
) -> tuple[Measured, Sample | None]:
    """Return the measured queries and a sample of captions to fit the query maps.

    The queries do not contain fitted maps yet. The sample is None without captions, or with too few of them.
    """
    if old.captions:
        known = [(p, text) for p, text in _captions_of(old, new, measured) if not past or text not in past.texts]
        chosen = [known[row] for row in sorted(draw.permutation(len(known))[:most])]
        if len(chosen) < LEAST_QUERIES:
            what = f"{len(chosen)} captions of measured items are the same in both streams, fewer than {LEAST_QUERIES}"
            raise ConfigError(what, new.name, remedy="Import both streams from one table, or pass fewer --queries.")
        target = torch.tensor([place for place, _ in chosen])
        texts = [text for _, text in chosen]
        by_new, by_old = (_text_vectors(each, texts) for each in (new, old))
        return Measured(by_new, by_old, target, target, True), _caption_sample(old, new, sampled, draw)
    if past:
        vectors = torch.from_numpy(past.new)[1::2][:most]
        if len(vectors) < LEAST_QUERIES:
            what = f"has {len(past.new)} queries, of which half are measured; that is fewer than {LEAST_QUERIES}"
            raise ConfigError(what, "--queries", remedy="Pass more queries.")
        none, group = torch.full((len(vectors),), -1), torch.arange(len(vectors))
        return Measured(vectors, None, none, group, False), None
    target = torch.from_numpy(np.sort(draw.permutation(len(measured))[:most]))
    ids = [measured[place] for place in target.tolist()]
    by_new, by_old = (torch.from_numpy(each.vectors[rows_of(each, ids).numpy()]) for each in (new, old))
    return Measured(by_new, by_old, target, torch.arange(len(target)), False), None


def _caption_sample(old: VectorSet, new: VectorSet, sampled: list[str], draw: np.random.Generator) -> Sample | None:
    """Return pairs of captions of the sampled items, split by item; None if these have too few."""
    known = _captions_of(old, new, sampled)
    known = [known[row] for row in sorted(draw.permutation(len(known))[: CAPTIONS * len(sampled)])]
    is_checked = torch.tensor([place % CHECKED == CHECKED - 1 for place, _ in known], dtype=torch.bool)
    if len(known) < LEAST_SAMPLE or not is_checked.any():
        return None
    pair = [_text_vectors(each, [text for _, text in known]) for each in (old, new)]
    fitted, checked = ([each[part] for each in pair] for part in (~is_checked, is_checked))
    target = torch.tensor([place // CHECKED for place, _ in known])[is_checked]
    return Sample(fitted[0], fitted[1], checked[0], checked[1], target)
