"""Names of backbones, available before a backbone is built.

The module imports neither torch nor open_clip: open_clip's architectures are JSON files in its package.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

TINY = "tiny-clip"
TINY_FOLDER = Path(__file__).parent / "tiny_clip"  # shipped with this package
TINY_STEM = "tiny-clip-stem"  # its convolutional stem recognizes shapes and positions
VECTORS = "vectors"  # towers for a stream of imported features, without a pre-trained model (vectors.py)
IMPORTED = "imported"  # the only value of `backbone.weights` for VECTORS
SHIPPED = {TINY: TINY_FOLDER, TINY_STEM: Path(__file__).parent / "tiny_clip_stem"}

# UMT's towers (arXiv:2303.16058), in the format of open_clip's configurations; bert.py explains `fusion_from`
UMT: dict[str, dict[str, Any]] = {
    "UMT-B-16": {
        "embed_dim": 512,
        "vision_cfg": {"image_size": 224, "patch_size": 16, "width": 768, "layers": 12, "heads": 12},
        "text_cfg": {
            "width": 768,
            "layers": 12,
            "heads": 12,
            "hidden": 3072,
            "fusion_from": 9,
            "vocab_size": 30522,
            "context_length": 512,
        },
    },
    "UMT-L-16": {
        "embed_dim": 768,
        "vision_cfg": {"image_size": 224, "patch_size": 16, "width": 1024, "layers": 24, "heads": 16},
        "text_cfg": {
            "width": 1024,
            "layers": 24,
            "heads": 16,
            "hidden": 4096,
            "fusion_from": 19,
            "vocab_size": 30522,
            "context_length": 512,
        },
    },
}


def open_clip_folder() -> Path:
    """Return the folder of open_clip's package that contains a JSON file for each architecture."""
    spec = find_spec("open_clip")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model_configs"
