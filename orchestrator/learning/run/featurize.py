"""Precomputation of frozen vision features for later runs, in this process or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from ctvr.orchestrator import console
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.device import set_determinism
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.data.frozen_features import KIND as FEATURES
from ctvr.orchestrator.data.frozen_features import WORTH, frozen_features
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.keys.run_key import backbone_digest
from ctvr.orchestrator.learning.run.factory import load_clip, make_method
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.packer import Packer
from ctvr.orchestrator.store.paths import RunPaths
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Item, Stream

Progress = Callable[[int], object]


class Featurizer:
    """Computes and stores tokens of a frozen tower, which later runs with `settings` read.

    Args:
        settings: complete and flat, as `Experiment.settings`.
        places: locations of videos and store.
        device: device of the tower.

    Raises:
        ConfigError: if the method has too few frozen blocks, or caching is off.
    """

    def __init__(self, settings: Settings, places: RunPaths, device: torch.device) -> None:
        experiment = resolve(settings)
        if not experiment.data.cache_features:
            raise ConfigError("data.cache_features=false disables caching", "--features", remedy="Omit one of them.")
        set_determinism(device, experiment.run.deterministic, experiment.run.precision)
        stream = load_stream(experiment.run.stream, places.root, places.videos)
        clip, store = load_clip(experiment.backbone), places.open_store()
        method = make_method(experiment, clip).to(device)
        features = frozen_features(method, store, experiment.run.precision, backbone_digest(experiment.backbone.name))
        if features is None:
            raise ConfigError(
                f"--features: {experiment.run.method} leaves {method.frozen_blocks} of {len(clip.vision.blocks)} "
                f"vision blocks unchanged; caching needs at least {WORTH:.0%}. Omit --features, or choose a method "
                "that leaves more, such as method=zero_shot."
            )
        self.source = FrameSource(store, experiment.data, clip.image_size, clip.resize)
        self._features = features
        self._data = StreamData(stream, self.source, clip.tokenize, clip.mean, clip.std, experiment.data, device)

    def packer(self) -> Packer:
        """Return a packer for tokens; when its context ends, all tokens are in the store."""
        return Packer(self.source.store, FEATURES)

    def __call__(self, item: Item, packer: Packer) -> bool:
        """Compute the tokens of a video whose frames are in the store. Return False if they already exist."""
        return self._features.make(self.source.key(item), lambda: self._data.load_video(item), packer)


class Featurize(Protocol):
    """Function that computes features of many videos; it returns how many were computed and how many existed."""

    def __call__(self, items: Sequence[Item], progress: Progress) -> tuple[int, int]: ...


def featurize_here(settings: Settings, places: RunPaths) -> Featurize:
    """Return a function that computes features in this process, on its GPU if it has one."""
    tower = Featurizer(settings, places, torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def featurize(items: Sequence[Item], progress: Progress) -> tuple[int, int]:
        made = 0
        with tower.packer() as packer:
            for item in items:
                made += tower(item, packer)
                progress(1)
        return made, len(items) - made

    return featurize


def featurize_stream(stream: Stream, splits: Sequence[str], lost: Iterable[str], featurize: Featurize) -> str:
    """Compute the features of every video of the splits; return a summary line.

    Args:
        lost: videos without frames.
        featurize: computes features of a list of videos.
    """
    gone = set(lost)
    found = (item for index in range(len(stream.tasks)) for split in splits for item in stream.items(index, split))
    items = [item for item in dict.fromkeys(found) if item.video not in gone]
    with console.progress(len(items), "features", is_shown=bool(items)) as bar:
        made, known = featurize(items, bar.update)
    return f"stream {stream.name}: computed features of {made} videos, {known} were already in the store"
