"""Adapter of a trained model to MTEB's encoder interface, for MTEB's video retrieval tasks.

    import ctvr, mteb
    model = ctvr.MtebEncoder(ctvr.load("best-shapes-5"))
    mteb.evaluate(model, mteb.get_tasks(["MSVDT2VRetrieval"]))

The methods are those of mteb's `EncoderProtocol` (2.26). mteb itself is needed only for `mteb_model_meta`. Final
normalization over the whole matrix (dual softmax) is omitted, because MTEB requests similarities in parts; a method
that prompts by task encodes texts for its last task.

Shapes: N inputs, T frames of a video, d joint embedding.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.frames import frames_of
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.evaluation.encode_videos import encode_in_blocks
from ctvr.orchestrator.retrieval.model import Model


class MtebEncoder:
    """A model with MTEB's encoder interface (`encode`, `similarity`).

    Args:
        model: from `ctvr.load`.
        name: OWNER/NAME in MTEB's results; default: the name of the run. MTEB stores results by name and `revision`.
    """

    def __init__(self, model: Model, name: str = "") -> None:
        self.model = model
        self.name = name or f"ctvr/{model.run or model.name}"
        self._shapes: dict[str, tuple[int, ...]] = {}  # "text", "video" -> shape of one feature
        self._data: StreamData = model.data(())

    def encode(self, inputs: Iterable[Mapping[str, Any]], *_: Any, **__: Any) -> np.ndarray:
        """Return features of all batches, one row per input; features per frame are flattened in their row.

        Args:
            inputs: a DataLoader of batches with the key "video" (decoders of torchcodec, or frames (n, 3, H, W) uint8
                of any number, from which T are selected as in training) or "text".

        Raises:
            ConfigError: for a batch with neither or both of these keys.
        """
        rows = [self._batch(batch) for batch in _with_decoders(inputs)]
        return torch.cat(rows).numpy()

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the method's similarities (N1, N2) of rows of `encode`: texts and videos in either order."""
        one, other = (torch.as_tensor(np.asarray(each), dtype=torch.float32) for each in (embeddings1, embeddings2))
        text, video = (self._shapes.get(kind, one.shape[1:]) for kind in ("text", "video"))
        method, device = self.model.trained.method, self.model.device
        is_turned = one.shape[1:].numel() != torch.Size(text).numel()  # the videos are the queries
        queries, gallery = (other, one) if is_turned else (one, other)
        with torch.no_grad():
            found = method.score(queries.reshape(-1, *text).to(device), gallery.reshape(-1, *video).to(device))
        return (found.mT if is_turned else found).float().cpu()

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return similarities (N,) of corresponding rows."""
        pairs = zip(np.asarray(embeddings1), np.asarray(embeddings2))
        return torch.cat([self.similarity(one[None], other[None])[0] for one, other in pairs])

    @property
    def revision(self) -> str:
        """Return the digest of the method's weights and of its frame settings, which identifies the model."""
        weights = hashlib.sha256()
        for name, value in sorted(self.model.trained.method.state_dict().items()):
            plain = value.detach().cpu().contiguous()
            weights.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
            weights.update(plain.reshape(-1).view(torch.uint8).numpy())
        read = {name: value for name, value in self.model.settings.items() if name.startswith(("data.", "method"))}
        return digest_of([weights.hexdigest(), self._data.frames.sampling.size, read])

    @property
    def mteb_model_meta(self) -> Any:
        """Return the model's metadata for MTEB's results: name, size, modalities.

        Raises:
            ConfigError: if mteb is not installed.
        """
        if importlib.util.find_spec("mteb") is None:
            raise ConfigError("is not installed", "mteb", remedy="Install it: pip install mteb")
        from mteb.models import ModelMeta  # type: ignore[import-not-found, unused-ignore]

        parameters = sum(each.numel() for each in self.model.trained.method.parameters())
        return ModelMeta.create_empty(
            {"name": self.name, "revision": self.revision, "n_parameters": parameters} | _ABOUT
        )

    def _batch(self, batch: Mapping[str, Any]) -> Tensor:
        kinds = [kind for kind in ("text", "video") if kind in batch]
        if len(kinds) != 1:
            has = " and ".join(kinds) or ", ".join(batch)
            raise ConfigError(f"mteb: a batch has {has or 'nothing'}. Choose tasks between texts and videos.")
        if kinds == ["text"]:
            found = self.model.encode_text(list(batch["text"]))
        else:
            sampling = self._data.frames.sampling
            raw = torch.from_numpy(np.stack([frames_of(video, sampling) for video in batch["video"]]))
            found = encode_in_blocks(self.model.encode_frames, [self._data.to_batch(raw)])
        self._shapes[kinds[0]] = tuple(found.shape[1:])
        return found.flatten(1)


def _with_decoders(inputs: Any) -> Iterable[Mapping[str, Any]]:
    """Yield the batches; videos of mteb's DataLoader remain decoders and are not stacked."""
    if "video" in getattr(getattr(inputs, "dataset", None), "features", ()):
        inputs.collate_fn = lambda rows: {key: [row[key] for row in rows] for key in rows[0]}
    return inputs


_ABOUT = {
    "modalities": ["text", "video"],
    "framework": ["PyTorch"],
    "languages": ["eng-Latn"],
    "similarity_fn_name": None,
    "reference": None,
}
