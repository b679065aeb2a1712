"""Retrieval with a trained model: features of texts and videos, and the videos that match a text best.

Shapes: N texts, V videos, d joint embedding, d' dimensions of an imported vector of a caption. Features are (., d) for
most methods; some keep a row for every frame.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.merged_weights import merged_weights
from ctvr.methods.backbone.vectors import Vectors
from ctvr.methods.layers.transfer import trim_padding
from ctvr.orchestrator.data.batches import StreamData, cut_tokens
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.device import autocast_for, set_determinism
from ctvr.orchestrator.data.frames import Broken, FrameSource
from ctvr.orchestrator.data.imported_features import CaptionLookup, frame_source
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.evaluation.encode_videos import encode_in_blocks
from ctvr.orchestrator.learning.evaluation.evaluate import all_scores, encode_for_task
from ctvr.orchestrator.learning.evaluation.ranking import score_reader, topk
from ctvr.orchestrator.learning.evaluation.tiled_scorer import TiledScorer, offsets
from ctvr.orchestrator.learning.run.factory import TrainedModel
from ctvr.orchestrator.retrieval.checks import check_count, check_query
from ctvr.orchestrator.retrieval.hits import Hit, Hits
from ctvr.orchestrator.retrieval.query_vectors import QueryEncoder, check_one_embedder, check_query_vectors
from ctvr.orchestrator.retrieval.video_files import Videos, is_folder, videos_of
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask
from ctvr.orchestrator.streams.videos import VideoPlaces, picture_of

log = logging.getLogger(__name__)

Array = np.ndarray | Tensor
Queries = Sequence[str] | Array  # texts, or vectors (N, d') of texts for a model over imported features


@dataclass(frozen=True)
class Block:
    """Searched videos and their features."""

    items: tuple[Item, ...]
    features: Tensor  # (V, ...) on the CPU
    task: int | None = None  # 0-based; None for the user's videos
    name: str = ""


@dataclass
class Model:
    """A trained method that can be queried: `model.search("a dog runs along a beach")`.

    By default, `search` uses the videos of the model's stream. Their features were stored when their task was learned.
    If the run no longer has these features, the model encodes the videos now.

    Attributes:
        name: the name by which it was loaded.
        trained: the method, its settings and its backbone.
        store: keeps decoded frames, so that a video is decoded once.
        stream: the stream of its training; None if it is not available.
        run: name of the run that trained it; empty for a folder. `name` may refer to another run later.
        places: index of the folder with the videos of a stream of features; images of hits are taken from them.
    """

    name: str
    trained: TrainedModel = field(repr=False)  # a notebook would otherwise print every module
    store: Store = field(repr=False)
    stream: Stream | None = field(default=None, repr=False)
    device: torch.device = field(default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    run: str = ""
    places: VideoPlaces | None = field(default=None, repr=False)
    _own: list[Block] = field(default_factory=list, repr=False)
    _others: dict[tuple[str, ...], Block] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        run = self.trained.experiment.run
        set_determinism(self.device, run.deterministic, run.precision)
        self.trained.method.to(self.device)
        if self.stream is not None and self.trained.learned:
            self.stream = self.stream.after_learned(self.trained.learned)
        clip = self.trained.clip
        if isinstance(clip, Vectors) and isinstance(clip.tokenize, CaptionLookup):
            clip.tokenize.encode = QueryEncoder(self.stream, self.name, clip.text.width)

    @property
    def settings(self) -> dict[str, object]:
        """Return all settings of the model's run, flat and dotted."""
        return dict(self.trained.experiment.settings)

    @property
    def method(self) -> str:
        """Return the name of the model's method, as in `ctvr methods`."""
        return self.trained.experiment.name

    def encode_text(self, texts: str | Queries, task: int | None = None) -> Tensor:
        """Return features of texts, (N, ...) float32 on the CPU; a single text is N = 1.

        Args:
            texts: one or several texts, or their vectors as for `search`.
            task: 0-based task whose videos are searched, for methods that prompt by task; if None, the last task.

        Raises:
            ConfigError: for a text without words, or a task that the model has not learned.
        """
        return self._texts(self._tokens([texts] if isinstance(texts, str) else texts), task)

    def _tokens(self, queries: Queries) -> Tensor:
        if not isinstance(queries, Array):
            check_query(queries)
            return cut_tokens(self._clip.tokenize(list(queries)), self.trained.experiment.data.max_tokens)
        if not isinstance(self._clip, Vectors):
            raise ConfigError("takes texts, not vectors", f"model {self.name}", remedy="Pass the texts.")
        check_one_embedder(self.trained.method, self.name)
        given = check_query_vectors(queries, f"model {self.name}", self._clip.text.width)
        return self._clip.text.table.hold(torch.from_numpy(given))[:, None]

    def encode_video(self, videos: Videos) -> Tensor:
        """Return features of video files, (V, ...) float32 on the CPU, in the given order (a folder: by name).

        Raises:
            ConfigError: if a file does not exist, the folder contains no video, or the model has vectors of videos.
            VideoError: if a file is not a readable video.
        """
        self._require_frames()
        return self._encode(videos_of(videos))

    @overload
    def search(self, query: str, k: int = 10, videos: Videos | None = None) -> Hits: ...  # type: ignore

    @overload
    def search(self, query: Sequence[str], k: int = 10, videos: Videos | None = None) -> list[Hits]: ...

    @overload
    def search(self, query: Array, k: int = 10, videos: Videos | None = None) -> Any: ...

    def search(self, query: str | Queries, k: int = 10, videos: Videos | None = None) -> Hits | list[Hits]:
        """Return the k videos that match a text best, best first; for several texts a list for each.

        With transductive methods (dual softmax), texts that are searched together influence each other.

        Args:
            query: a text or several. For a model over imported features also a vector (d',) or several (N, d'), as the
                embedder of the captions computes them.
            k: number of videos per text, >= 1.
            videos: a folder, a file or files of the user; if None, the videos of the stream.

        Raises:
            ConfigError: for an empty text, a text or vector that the model cannot encode, k < 1, or videos that do not
                exist.
        """
        is_one = isinstance(query, str) or (isinstance(query, Array) and query.ndim == 1)
        texts: Queries = [query] if isinstance(query, str) else query
        if not isinstance(texts, Array):
            check_query(texts)
        elif is_one:
            texts = texts[None]
        check_count(k)
        blocks = self.gallery() if videos is None else [self.encode_gallery(videos)]
        starts, found = offsets(len(block.items) for block in blocks), []
        for values, columns in zip(*(each.tolist() for each in self._best(texts, blocks, k))):
            hits = Hits()
            for number, (score, column) in enumerate(zip(values, columns), 1):
                at = bisect_right(starts, column) - 1
                block, item = blocks[at], blocks[at].items[column - starts[at]]
                clip = self.picture_of(item)
                hits.append(Hit(number, score, item.video, *clip, block.name, item.captions, item.category))
            found.append(hits)
        return found[0] if is_one else found

    def picture_of(self, item: Item) -> tuple[str, tuple[float, float] | None]:
        """Return the file and segment from which an image of a video is taken; the file is "" if none exists."""
        return picture_of(item, self.places)

    def gallery(self) -> list[Block]:
        """Return the videos that `search` uses if `videos` is not given: a block for each task of the stream.

        Raises:
            ConfigError: if the stream is not available.
        """
        if self._own:
            return self._own
        if self.stream is None:
            name = self.trained.experiment.run.stream
            import_it = f"Import {name} on this machine, or pass --runs with the folder that contains it."
            takes_features = self._clip.vision.takes_features
            remedy = import_it if takes_features else "Add --gallery FOLDER with the videos to search."
            raise ConfigError(f"its stream {name} is not available", f"model {self.name}", remedy=remedy)
        split, stored = self.trained.experiment.evaluation.split, self.trained.galleries
        items = [self.stream.items(index, split) for index in range(len(self.stream.tasks))]
        if [len(each) for each in items] != [len(each) for each in stored]:
            stored = tuple(self._encode(each) for each in items)
            self.trained.method.gallery_is_fresh = True
        parts = enumerate(zip(self.stream.tasks, items, stored))
        self._own = [Block(each, rows, self.stream.method_task(i), task.name) for i, (task, each, rows) in parts]
        return self._own

    def set_gallery(self, blocks: Sequence[Block]) -> None:
        """Set the videos to search, with features that were stored with the model; a block for each task."""
        self._own = list(blocks)

    @torch.no_grad()
    def scores(self, texts: Queries, blocks: Sequence[Block]) -> Tensor:
        """Return normalized similarities (N, V) of texts and the videos of blocks, on the CPU.

        Methods that prompt by task encode a text again for each task's videos (CTVR, section 4.2).
        """
        method, trained = self.trained.method, self.trained.experiment
        galleries = [block.features for block in blocks]
        return method.normalize_scores(
            all_scores(method, self._asked(texts, blocks), galleries, trained.evaluation, self.device)
        )

    def _best(self, texts: Queries, blocks: Sequence[Block], k: int) -> tuple[Tensor, Tensor]:
        """Return scores (N, k) and columns (N, k) of the best matches; normalized scores need the matrix (N, V)."""
        method, chunk = self.trained.method, self.trained.experiment.evaluation.query_chunk
        galleries = [block.features for block in blocks]
        columns = offsets(map(len, galleries))
        if method.declared.normalizes_scores:
            return topk(score_reader(self.scores(texts, blocks)), len(texts), columns, k, chunk)
        asked = list(self._asked(texts, blocks))
        return topk(TiledScorer(method, asked, galleries, self.device), len(texts), columns, k, chunk)

    def _asked(self, texts: Queries, blocks: Sequence[Block]) -> Iterator[Tensor]:
        """Yield features of texts: one tensor for all blocks, or one per block if the method prompts by task."""
        tokens, kept = self._tokens(texts), dict[int, Any]()
        for block in blocks if self.trained.method.declared.task_conditioned_text else (None,):
            yield self._texts(tokens, block.task if block is not None else None, kept)

    @torch.no_grad()
    def _texts(self, tokens: Tensor, task: int | None, kept: dict[int, Any] | None = None) -> Tensor:
        method = self.trained.method
        if task is None and method.declared.task_conditioned_text and self.stream is not None:
            task = len(self.stream.method_tasks) - 1
        tokens = trim_padding(tokens) if method.declared.attends_to_padding else tokens
        with self._precision(), merged_weights():
            kept = {} if kept is None else kept
            return encode_for_task(method, tokens.to(self.device), task, kept).float().cpu()

    @torch.no_grad()
    def encode_frames(self, frames: Tensor) -> Tensor:
        """Return features of normalized frames (V, T, 3, H, W), (V, ...) float32 on the CPU."""
        with self._precision(), merged_weights():
            return self.trained.method.encode_video(frames).float().cpu()

    def frames_of(self, items: Sequence[Item]) -> Iterator[Tensor]:
        """Yield normalized frames (B, T, 3, H, W) of videos in evaluation batches; missing frames are decoded.

        Raises:
            VideoError: if a file is not a readable video.
        """
        if broken := self._decode(items):
            raise broken[0][1]
        data, size = self.data(items), self.trained.experiment.evaluation.batch_size
        yield from data.videos(0, "test", range(len(items)), size)

    def _encode(self, items: Sequence[Item]) -> Tensor:
        return encode_in_blocks(self.encode_frames, self.frames_of(items))

    def encode_gallery(self, videos: Videos) -> Block:
        """Encode the user's videos, and cache their features; unreadable files of a folder are skipped.

        Raises:
            ConfigError: if a file does not exist, the folder contains no readable video, or the model has vectors of
                videos.
            VideoError: if an explicitly named file is not a readable video.
        """
        self._require_frames()
        items = videos_of(videos)
        names = tuple(item.path for item in items)
        if names not in self._others:
            whole = self._without_broken(items) if is_folder(videos) else items
            self._others[names] = Block(whole, self._encode(whole))
        return self._others[names]

    def _without_broken(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """Return the items of a folder that can be decoded; log the other items.

        Raises:
            ConfigError: if none can be decoded.
        """
        broken = {item.video: error for item, error in self._decode(items)}
        if not broken:
            return items
        first = str(next(iter(broken.values())))
        if len(broken) == len(items):
            raise ConfigError(f"none of {len(items)} files can be read, the first: {first}", "videos")
        log.warning("videos: %d of %d files are left out, the first: %s", len(broken), len(items), first)
        return tuple(item for item in items if item.video not in broken)

    def _decode(self, items: Sequence[Item]) -> Broken:
        """Decode the items that the store lacks; return the items that cannot be decoded."""
        frames = self.data(items).frames
        keys, unreadable = frames.keys(items)
        missing = [item for item, key in keys.items() if not self.store.has("frames", key)]
        return [*unreadable, *frames.decode_missing(missing)[1]]

    def data(self, items: Sequence[Item]) -> StreamData:
        """Return items as tensors, prepared as in the model's run."""
        config: DataConfig = self.trained.experiment.data
        clip = self._clip
        stream = Stream("videos", (StreamTask("videos", (), (), (), tuple(items)),), "ctvr", has_val=False)
        known = (self.store, config, clip.image_size, clip.resize)
        source = FrameSource(*known) if self.stream is None else frame_source(self.stream, *known)
        return StreamData(stream, source, clip.tokenize, clip.mean, clip.std, config, self.device)

    @property
    def _clip(self) -> Clip:
        clip = self.trained.clip
        if not isinstance(clip, Clip):
            raise ConfigError(
                "it was trained on images without captions and cannot search by text.", f"model {self.name}"
            )
        return clip

    def _require_frames(self) -> None:
        if self._clip.vision.takes_features:
            raise ConfigError(
                "searches imported features and cannot encode videos",
                f"model {self.name}",
                remedy="Omit --gallery to search the videos of its stream.",
            )

    def _precision(self) -> AbstractContextManager[object]:
        return autocast_for(self.trained.experiment.run.precision, self.device.type)
