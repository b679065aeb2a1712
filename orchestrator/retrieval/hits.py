"""Retrieved videos of a query, as objects that a terminal and a notebook show."""

from __future__ import annotations

from dataclasses import dataclass

from ctvr.orchestrator.video.thumbnails import captioned_strips


@dataclass(frozen=True)
class Hit:
    """One retrieved video. `rank` 1 matches best; `score` is the method's similarity, for most methods a cosine.

    `path` is empty if only features of the video are available.
    """

    rank: int
    score: float
    video: str
    path: str
    segment: tuple[float, float] | None = None  # start and end in the file, in seconds
    task: str = ""  # name in the stream; empty for the user's videos
    captions: tuple[str, ...] = ()
    category: str = ""  # name in the stream; empty for the user's videos

    def __str__(self) -> str:
        """Return rank, score, video and first caption in one line."""
        return f"{self.rank}. {self.score:.3f} {self.video}{f': {self.captions[0]}' if self.captions else ''}"


class Hits(list[Hit]):
    """The retrieved videos of one query, best first."""

    def __repr__(self) -> str:
        """Return a line for each video."""
        return "\n".join(map(str, self)) or "no videos"

    def _repr_html_(self) -> str:
        """Return a strip of frames for each video as HTML, for notebooks."""
        return captioned_strips([(hit.path, hit.segment) for hit in self], list(map(str, self)))
