"""Bounds on the recall of the remaining videos, after others were lost."""

import re

import numpy as np
import pytest

from ctvr.orchestrator.streams.survivors import survivors_note


def least(note: str, printed: float) -> float:
    lost, left = (float(each) for each in re.search(r"\(P - (\S+)\) / (\S+) %", note).groups())
    return max(0.0, (printed - lost) / left)


@pytest.mark.parametrize(("printed", "lost", "expected"), [(30.0, 20, 12.5), (22.06, 10, 13.40), (5.0, 10, 0.0)])
def test_examples_of_the_definitions(printed, lost, expected):
    assert least(survivors_note(lost, 100 - lost), printed) == pytest.approx(expected, abs=0.005)
    assert survivors_note(0, 100) == ""


def test_recall_on_the_rest_is_never_below_the_bound_and_can_reach_it():
    """Scores and losses are random; then only videos of correct captions are lost."""
    random, gaps = np.random.default_rng(0), []
    for draw in range(200):
        videos, k = int(random.integers(10, 60)), int(random.integers(1, 6))
        scores = random.normal(size=(videos, videos)) + 2 * np.eye(videos)
        count = int(random.integers(1, videos // 2))
        hit = ranks(scores) <= k
        order = np.argsort(~hit, kind="stable") if draw % 2 else random.permutation(videos)
        kept = np.sort(order[count:])
        found = 100 * (ranks(scores[np.ix_(kept, kept)]) <= k).mean()
        bound = least(survivors_note(count, videos - count), 100 * hit.mean())
        assert bound - 0.02 <= found <= 100  # the note has two decimals
        gaps.append(found - bound)
    assert min(gaps) < 0.02


def ranks(scores: np.ndarray) -> np.ndarray:
    return 1 + (scores > np.diag(scores)[:, None]).sum(axis=1)
