"""Change detection in a stream of captions by the Page-Hinkley test (`Stream.cut_at_drift`).

The test is Page's ("Continuous inspection schemes", Biometrika 41, 1954) with Hinkley's estimate of the mean
(Biometrika 58, 1971), in the form that surveys of concept drift give; neither paper was read for this code. The input
is our choice: the surprisal of a new video's captions under the words since the last change, in nats per word. No model
is needed, so the boundaries are fixed when a stream is loaded, and equal for all methods and seeds.

    x_i = mean of -ln p(w) over the words w of video i,   p(w) = (count(w) + 1) / (words + distinct words + 1)
    m_t = sum of x_i - mean(x_1 .. x_i) - DELTA over i <= t;   a change at t if m_t - min(m_1 .. m_t) > THRESHOLD

Counts cover the videos after the last change and before i. The test skips the first `LEAST` videos after a change.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

LEAST = 10  # videos after a change that the test skips
DELTA = 0.1  # nats; smaller increases are noise
THRESHOLD = 2.0  # nats; lambda of the test


class PageHinkley:
    """Online Page-Hinkley test for an increase of the mean."""

    def __init__(self, delta: float = DELTA, threshold: float = THRESHOLD) -> None:
        self.delta, self.threshold = delta, threshold
        self._count, self._sum, self._m, self._least = 0, 0.0, 0.0, 0.0

    def add(self, x: float) -> bool:
        """Add an observation; return whether an increase of the mean is detected."""
        self._count, self._sum = self._count + 1, self._sum + x
        self._m += x - self._sum / self._count - self.delta
        self._least = min(self._least, self._m)
        return self._m - self._least > self.threshold


def changes(captions: Iterable[Sequence[str]]) -> list[int]:
    """Return the positions of the videos at which a change of the words is detected, in order of arrival.

    Args:
        captions: captions of each video.
    """
    found, known, seen, test = [], Counter[str](), 0, PageHinkley()
    for position, texts in enumerate(captions):
        words = [word for text in texts for word in re.findall(r"\w+", text.lower())]
        total = known.total() + len(known) + 1
        if seen >= LEAST and words and test.add(sum(-math.log((known[w] + 1) / total) for w in words) / len(words)):
            found.append(position)
            known, seen, test = Counter(), 0, PageHinkley()
        known.update(words)
        seen += 1
    return found


def chunk_ends(captions: Sequence[Sequence[str]], longest: int) -> list[int]:
    """Return the ends of chunks of videos: a chunk ends before a change, or when it has `longest` videos.

    A change within the first `LEAST` videos of a chunk does not end it. The last chunk ends with the last video.
    """
    ends: list[int] = []
    changed = set(changes(captions))
    start = 0
    for position in range(len(captions)):
        size = position - start
        if size == longest or (size >= LEAST and position in changed):
            ends.append(position)
            start = position
    return [*ends, len(captions)]
