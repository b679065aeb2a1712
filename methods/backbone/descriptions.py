"""Sizes of backbones, available before a backbone is built; the module imports neither torch nor open_clip."""

from __future__ import annotations

import json
from typing import Any

from ctvr.methods.backbone.architectures import SHIPPED, UMT, VECTORS, open_clip_folder
from ctvr.methods.backbone.own_architecture import is_own, read_architecture


def image_size(name: str) -> int | None:
    """Return the side of a backbone's input images in pixels; None for an unknown name."""
    if name == VECTORS:
        return 1
    size = (get_model_config(name) or {}).get("vision_cfg", {}).get("image_size")
    size = size[0] if isinstance(size, list) else size
    return size if isinstance(size, int) else None


def get_model_config(name: str) -> dict[str, Any] | None:
    """Return a backbone's sizes in open_clip's form; None for an unknown name or a file without an architecture."""
    if name in UMT:
        return UMT[name]
    if is_own(name):
        try:
            return read_architecture(name)
        except (ValueError, OSError):  # loading the backbone reports the reason
            return None
    file = SHIPPED[name] / "config.json" if name in SHIPPED else open_clip_folder() / f"{name}.json"
    if not file.is_file():
        return None
    described: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return dict(described["model"]) if name in SHIPPED else described
