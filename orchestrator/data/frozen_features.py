"""Outputs of the frozen leading blocks of a vision tower, stored per video and shared between trials.

`Method.frozen_blocks` is the number of leading blocks that a method leaves unchanged, so that their output for a video
does not change. The output is computed one video at a time, so that it does not depend on the content of the store. It
is used only while training batches are not augmented. The first run that needs the output computes it, unless
`ctvr cache build --features` has computed it before.

In addition to the frames of a video (`data.num_frames` x size x size x 3 bytes), the store contains the tokens that
enter the next block (frames x tokens x width x 4 bytes). A video of 12 frames needs 1.8 MB for ViT-B/32, and 7.3 MB for
ViT-B/16. After the last block, only the class tokens are stored (37 kB). The stored output of two of twelve blocks
would save 8 % of a training step's time on a CPU (`make bench`), so outputs of fewer than a third of the blocks are not
stored.

Shapes: B videos, T frames, N tokens, D width of the tower.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip, VisionTower
from ctvr.methods.backbone.compiled import is_compiled
from ctvr.methods.backbone.load import VERSION
from ctvr.methods.base import Method
from ctvr.orchestrator.data.device import Precision, autocast_for, numerics_flags
from ctvr.orchestrator.digests import canonical, digest_of, digest_sources, list_sources
from ctvr.orchestrator.errors import MissingObject, StoreError
from ctvr.orchestrator.interpreter import kernels
from ctvr.orchestrator.store.packer import Packer
from ctvr.orchestrator.store.store import Store

log = logging.getLogger(__name__)
KIND = "features"
_PLAIN = (bool, int, float, str, tuple, type(None))
WORTH = 1 / 3  # minimum share of frozen blocks in the tower for which tokens are stored


class FrozenFeatures:
    """Tokens of videos at the input of block `blocks` of a tower.

    Args:
        store: store of the tokens.
        clip: model on its device, whose vision tower has `blocks` frozen leading blocks.
        blocks: number of frozen blocks; if it is the depth of the tower, only the class tokens are stored.
        precision: precision of the run.
        code: digests of the code of another package that defines the tower.
    """

    def __init__(
        self, store: Store, clip: Clip, blocks: int, precision: Precision, code: Mapping[str, str] | None = None
    ) -> None:
        self.store, self.clip, self.blocks, self.precision, self.code = store, clip, blocks, precision, code
        self.tower: VisionTower = clip.vision
        self._maker = ""
        self._is_full = False

    @property
    def maker(self) -> str:
        """Return the digest of weights, code, precision and device, which with the frames determine the tokens."""
        if not self._maker:
            device = next(self.tower.parameters()).device
            cpu = f"{torch.backends.cpu.get_cpu_capability()} {kernels()}"
            self._maker = digest_of(
                {
                    "weights": _weights_digest(self.tower, self.blocks),
                    "architecture": architecture(self.tower),
                    "backbone": [self.clip.name, list(self.clip.mean), list(self.clip.std), self.clip.image_size],
                    "blocks": self.blocks,
                    "precision": self.precision,
                    **({"compiled": True} if is_compiled(self.tower) else {}),
                    **(self.code or {}),
                    "processor": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
                    "torch": torch.__version__,
                    **numerics_flags(device),
                    "open_clip": VERSION,
                    "code": [digest_sources(list_sources(room)) for room in ("methods/backbone", "orchestrator/data")],
                }
            )[:32]
        return self._maker

    def load(self, key: str, frames: Callable[[], Tensor]) -> Tensor:
        """Return tokens (T, N, D) of a video, on the CPU.

        Args:
            key: content address of the video's frames.
            frames: function that returns normalized frames (1, T, 3, H, W) on the tower's device, called if needed.
        """
        try:
            found = self.store.get(KIND, self._name(key))
            tokens = torch.from_numpy(np.array(found["tokens"]))
            return tokens.view(torch.bfloat16) if found.meta["dtype"] == "bfloat16" else tokens
        except MissingObject:
            tokens = self._compute(frames())
        try:
            self.store.put(KIND, *self._object(key, tokens))
        except StoreError as error:  # a full store only costs time
            if not self._is_full:
                log.warning("features are not cached and are computed each time: %s", error)
            self._is_full = True
        return tokens

    def make(self, key: str, frames: Callable[[], Tensor], packer: Packer) -> bool:
        """Compute the tokens of a video and add them to `packer`; return False if they already exist.

        Args:
            key: content address of the video's frames.
            frames: function that returns normalized frames (1, T, 3, H, W) on the tower's device.
            packer: stores the tokens.

        Raises:
            StoreError: if they cannot be stored.
        """
        if self._name(key) in packer or self.store.has(KIND, self._name(key)):
            return False
        packer.add(*self._object(key, self._compute(frames())))
        return True

    def _name(self, key: str) -> str:
        return f"{key}/{self.maker}"

    @torch.no_grad()
    def _compute(self, frames: Tensor) -> Tensor:
        """Encode (1, T, 3, H, W) to (T, N, D) on the CPU. A thread, which lacks the caller's autocast, may run it."""
        device = frames.device.type
        with torch.autocast(device, enabled=False), autocast_for(self.precision, device):
            return self.tower.prefix(frames, self.blocks).cpu()[0].contiguous()

    def _object(self, key: str, tokens: Tensor) -> tuple[str, dict[str, np.ndarray], dict[str, str]]:
        """Return key, arrays and metadata of tokens in the store."""
        is_bf16 = tokens.dtype == torch.bfloat16
        array = (tokens.view(torch.int16) if is_bf16 else tokens).numpy()
        return self._name(key), {"tokens": array}, {"dtype": "bfloat16" if is_bf16 else "float32"}


def frozen_features(
    method: Method, store: Store, precision: Precision, code: Mapping[str, str] | None = None
) -> FrozenFeatures | None:
    """Return the features for a new method, and set the block at which they enter its vision tower.

    `code` is that of `FrozenFeatures`. Returns None if the method has too few frozen leading blocks, several CLIP
    models, or imported features.
    """
    clips = [module for module in method.modules() if isinstance(module, Clip)]
    if any(clip.vision.takes_features for clip in clips):
        return None  # the stream itself has features
    if not method.frozen_blocks or len(clips) != 1 or method.frozen_blocks < WORTH * len(clips[0].vision.blocks):
        return None
    clips[0].vision.entry = method.frozen_blocks
    return FrozenFeatures(store, clips[0], method.frozen_blocks, precision, code)


def architecture(tower: nn.Module) -> list[list[str]]:
    """Return [name, class, plain attributes] of every module of a tower, such as activations and the number of heads.

    The digest of the weights does not cover them, although they change the features that equal weights compute.
    """
    found = []
    for name, module in tower.named_modules():
        plain = {
            key: value if isinstance(value, _PLAIN) else f"{value.__module__}.{value.__qualname__}"
            for key, value in vars(module).items()
            if key not in {"training", "entry", "takes_features"}
            and (isinstance(value, _PLAIN) or inspect.isroutine(value))
        }
        cls = type(module)
        found.append([name, f"{cls.__module__}.{cls.__qualname__}({module.extra_repr()})", canonical(plain)])
    return found


def _weights_digest(tower: VisionTower, blocks: int) -> str:
    """Return the sha256 of all weights used by the first `blocks` blocks."""
    later = tuple(f"blocks.{index}." for index in range(blocks, len(tower.blocks)))
    digest = hashlib.sha256()
    for name, value in sorted(tower.state_dict().items()):
        if name.startswith((*later, "ln_post.")) or name == "proj":
            continue
        array = value.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}\0".encode())
        digest.update(array.view(torch.uint8).numpy().data if array.ndim else array.numpy().tobytes())
    return digest.hexdigest()
