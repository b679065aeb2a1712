"""Decoding of videos into the store: each video is decoded once, by the first process that needs it.

`data.sampling=random` chooses other training frames in every epoch without decoding again. For this, the store also
contains CANDIDATES evenly spaced frames for each of the T equal parts of a training video; one per part is chosen.
A training video then needs 1 + CANDIDATES times the bytes and is decoded twice.

Shapes: T frames, H = W image size.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.file_digests import FileDigestCache
from ctvr.orchestrator.data.jpeg_frames import codec_version, decode_frames, encode_frames
from ctvr.orchestrator.digests import Identity, canonical, digest_file, digest_of
from ctvr.orchestrator.errors import ConfigError, MissingObject, VideoError
from ctvr.orchestrator.store.packer import Packer
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item, Segment, Stream
from ctvr.orchestrator.video.decode import decoder_version
from ctvr.orchestrator.video.pool import Decoder, Job
from ctvr.orchestrator.video.sampling import MISSING, Frames, Sampling, choose_frames, missing_frame

DEFAULT_RESIZE = (Sampling.resize_mode, Sampling.interpolation)  # omitted from keys
CANDIDATES = 4  # stored frames per part of a video; included in keys through the number of frames
Broken = list[tuple[Item, VideoError]]


class FrameSource:
    """Source of decoded frames: reads them from the store, and decodes missing frames into it.

    Args:
        store: store of decoded frames.
        config: the settings `data.*`.
        image_size: image size of the backbone, in pixels per side.
        resize: resize mode and interpolation of the backbone's weights (`Clip.resize`).

    Raises:
        ConfigError: if `data.image_size` differs from `image_size`.
    """

    def __init__(
        self, store: Store, config: DataConfig, image_size: int, resize: tuple[str, str] = DEFAULT_RESIZE
    ) -> None:
        if config.image_size not in {None, image_size}:
            raise ConfigError(
                f"the backbone needs {image_size} pixels (got {config.image_size})",
                "data.image_size",
                remedy=f"Use data.image_size={image_size} or omit it.",
            )
        self.store = store
        self.sampling = Sampling(config.num_frames, image_size, config.rule, *resize)
        self.resize = resize
        self.candidates: FrameSource | None = None  # candidates of training videos for random draws
        if config.sampling == "random":
            more = replace(config, sampling="linspace", num_frames=config.num_frames * CANDIDATES)
            self.candidates = FrameSource(store, more, image_size, resize)
        self.decoder = config.decoder
        self.quality = config.jpeg_quality
        self._keys: dict[Item, str] = {}

    @cached_property
    def version(self) -> str:
        """Return the part of every key that identifies the decoder; cached, since it takes 0.2 CPU-s.

        Queries of stored features do not need it.
        """
        return decoder_version(self.decoder)

    def key(self, item: Item) -> str:
        """Return the content address of an item's frames: a digest of file, frame selection, size and decoder."""
        if item not in self._keys:
            self._keys[item] = self._key(item, digest_path(item.path))
        return self._keys[item]

    def _key(self, item: Item, file: Any) -> str:
        """Return the content address, given the digest of the file."""
        if item.segment is None and isinstance(file, str):
            return hashlib.sha256(file.join(self._split_key).encode()).hexdigest()
        return digest_of(self._key_parts(item.segment, file))

    def _key_parts(self, segment: Segment | None, file: Any) -> dict[str, Any]:
        """Return everything that determines the frames, for the key."""
        return {
            "file": file,
            "segment": segment,
            "num_frames": self.sampling.num_frames,
            "rule": self.sampling.rule,
            "size": self.sampling.size,
            **({} if self.resize == DEFAULT_RESIZE else {"resize": self.resize}),
            "decoder": self.version,
            **({"codec": codec_version(self.quality)} if self.quality else {}),
        }

    @cached_property
    def _split_key(self) -> list[str]:
        """Return the JSON before and after the file digest in the key of a whole video, which all videos share."""
        return canonical(self._key_parts(None, "<file>")).split("<file>")

    def load(self, item: Item) -> np.ndarray:
        """Return frames (T, H, W, 3) uint8; decode the video if the store lacks intact frames."""
        return self._load(item)

    def _load(self, item: Item, chosen: np.ndarray | None = None) -> np.ndarray:
        try:
            arrays: Mapping[str, np.ndarray] = self.store.get("frames", self.key(item))
        except MissingObject:
            with Decoder(workers=1, decoder=self.decoder) as pool:
                clip = pool.decode(item.path, self.sampling, item.segment)
            key, arrays, meta = self._object(item, clip)
            self.store.put("frames", key, arrays, meta)
        if "jpeg" in arrays:
            return decode_frames(arrays, chosen)
        return arrays["frames"] if chosen is None else arrays["frames"][chosen]

    def draw(self, item: Item, seed: int) -> np.ndarray:
        """Return frames (T, H, W, 3) uint8 of a training video, one chosen at random from each of T equal parts.

        The same seed always gives the same frames.
        """
        assert self.candidates is not None, "frames are drawn only under data.sampling=random"
        parts = self.sampling.num_frames
        chosen = np.random.default_rng(seed).integers(CANDIDATES, size=parts)
        return self.candidates._load(item, np.arange(parts) * CANDIDATES + chosen)

    def _object(self, item: Item, clip: Frames) -> tuple[str, dict[str, np.ndarray], dict[str, str]]:
        """Return key, arrays and metadata of a video in the store."""
        frames = encode_frames(clip.frames, self.quality) if self.quality else {"frames": clip.frames}
        arrays = {**frames, "timestamps": clip.timestamps}
        return self.key(item), arrays, {"video": item.video, "decoder": clip.decoder}

    def keys(self, items: Iterable[Item], seen: Mapping[str, Identity] | None = None) -> tuple[dict[Item, str], Broken]:
        """Return the content address of each distinct item, and the items whose file cannot be read.

        Args:
            items: items of any tasks.
            seen: path -> current identity of a file (`streams.videos.scan_videos`). Digests of these files are read
                from the cache in the store, and new digests are added to it.
        """
        keys: dict[Item, str] = {}
        broken: Broken = []
        files = FileDigestCache(self.store, seen or {})
        for item in dict.fromkeys(items):
            try:
                key = self._keys.get(item)
                if key is None:
                    is_file = item.path in files.seen
                    key = self._key(item, files.digest(item.path) if is_file else digest_path(item.path))
                    self._keys[item] = key
                keys[item] = key
            except OSError as error:
                broken.append((item, VideoError(item.path, error.strerror or str(error))))
        files.keep()
        return keys, broken

    def decode_missing(
        self,
        items: Sequence[Item],
        workers: int = 2,
        progress: Callable[[int], object] | None = None,
        pool: Decoder | None = None,
    ) -> tuple[int, Broken]:
        """Decode items into the store in resource-limited child processes.

        Returns the number of decoded videos, and the items that could not be decoded with their errors. An error does
        not prevent the storage of other items, which are packed (store/packs.py).

        Args:
            items: items whose frames the store lacks.
            workers: number of child processes if `pool` is None.
            progress: called with 1 after each item.
            pool: existing child processes.
        """
        broken: Broken = []
        if not items:
            return 0, broken
        jobs = [Job(item.path, self.sampling, item.segment, str(index)) for index, item in enumerate(items)]
        new = (
            Decoder(workers=max(1, min(workers, len(jobs))), decoder=self.decoder)
            if pool is None
            else nullcontext(pool)
        )
        with Packer(self.store, "frames") as packer, new as children:
            for job, result in children.map(jobs):
                item = items[int(job.label)]
                if isinstance(result, VideoError):
                    broken.append((item, result))
                else:
                    packer.add(*self._object(item, result))
                if progress is not None:
                    progress(1)
        return len(items) - len(broken), broken


class ArraySource(FrameSource):
    """Source of arrays that the items' files contain; nothing is decoded or stored.

    Args:
        stream: stream whose items are arrays.
        store: store for the digests of files.
        config: the settings `data.*`.
        content: noun for the content of the arrays, for messages.
        plain: the settings that apply to frames only, each with the only value that is permitted.

    Raises:
        ConfigError: if a setting in `plain` has another value.
    """

    def __init__(
        self, stream: Stream, store: Store, config: DataConfig, content: str, plain: Mapping[str, Any]
    ) -> None:
        for name, only in plain.items():
            if getattr(config, name) != only:
                raise ConfigError(
                    f"{getattr(config, name)} is for videos, but stream {stream.name} has {content}",
                    f"data.{name}",
                    write=(f"data.{name}={'none' if only is None else only}",),
                )
        self.store, self.candidates = store, None
        self._keys: dict[Item, str] = {}

    def decode_missing(
        self,
        items: Sequence[Item],
        workers: int = 2,
        progress: Callable[[int], object] | None = None,
        pool: object = None,
    ) -> tuple[int, Broken]:
        """Check the arrays of all items; return 0 (no video is decoded), and the invalid items with their errors."""
        broken: Broken = []
        for item in items:
            try:
                self.load(item)
            except VideoError as error:
                broken.append((item, error))
        return 0, broken


def digest_path(path: str) -> Any:
    """Return the digest of a video file, or the names and digests of all files in a folder of frames."""
    if os.path.isdir(path):
        return [[file.name, digest_file(file)] for file in sorted(Path(path).iterdir()) if file.is_file()]
    return digest_file(path)


def frames_of(video: Any, sampling: Sampling) -> np.ndarray:
    """Select and resize frames (T, size, size, 3) uint8 of a video that the caller has opened.

    Args:
        video: a torchcodec decoder, or frames (n, 3, H, W) uint8 with an assumed rate of one per second.
        sampling: number, choice and size of the frames.
    """
    has_decoder = hasattr(video, "get_frames_at")
    count = int(video.metadata.num_frames) if has_decoder else len(video)
    rate = float(video.metadata.average_fps or 1) if has_decoder else 1.0
    chosen = choose_frames(np.arange(count) / rate, sampling.num_frames, None, sampling.rule, rate)
    wanted = sorted({int(number) for number in chosen} - {MISSING})
    frames = np.asarray(video.get_frames_at(wanted).data if has_decoder else video[wanted])
    small = {number: sampling.fit(frame.transpose(1, 2, 0)) for number, frame in zip(wanted, frames)}
    return np.stack([small[int(number)] if number != MISSING else missing_frame(sampling.size) for number in chosen])
