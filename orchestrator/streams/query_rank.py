"""Rank of the match of a query, stored as counts from which the rank under any tie rule can be computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Rank(NamedTuple):
    """Rank of a query's match, as counts of candidates with better and with equal scores, which are in random order."""

    better: int  # candidates with a higher score
    equal: int  # other candidates with the same score
    own: int = 1  # matches with that score

    @property
    def mean(self) -> float:
        """Return the mean rank 1 + better + equal / 2, which is 1 if the match is found first."""
        return 1 + self.better + self.equal / 2

    @property
    def first(self) -> float:
        """Return the probability that a match is found first, in [0, 1]; its mean over queries is R@1."""
        return 0.0 if self.better else self.own / (self.own + self.equal)

    @classmethod
    def read(cls, kept: Rank | list[int] | float) -> Rank:
        """Convert a stored rank, which JSON turns into a list, to a `Rank`.

        Older runs stored `mean` only. A value x.5 is read as one equal candidate, and an integer as no equal candidate.
        """
        if isinstance(kept, (int, float)):
            return cls(int(kept) - 1, int(kept % 1 > 0))
        return cls(*kept)


def read_all(kept: Mapping[str, Rank | list[int] | float]) -> dict[str, Rank]:
    """Convert the stored rank of every query to a `Rank`."""
    return {query: Rank.read(each) for query, each in kept.items()}
