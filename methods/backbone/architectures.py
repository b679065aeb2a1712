"""What is known of a backbone before it is built: its name, and how large the images are that it sees.

Loads neither torch nor open_clip, whose descriptions of architectures are JSON files beside its sources.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

TINY = "tiny-clip"
TINY_FOLDER = Path(__file__).parent / "tiny_clip"  # shipped with this package


def image_size(name: str) -> int | None:
    """Pixels of a side of the images that a backbone sees; None if nobody has described one of this name."""
    file = TINY_FOLDER / "config.json" if name == TINY else _open_clip_folder() / f"{name}.json"
    if not file.is_file():
        return None
    described = json.loads(file.read_text())
    size = (described["model"] if name == TINY else described)["vision_cfg"]["image_size"]
    return int(size[0] if isinstance(size, list) else size)


def _open_clip_folder() -> Path:
    spec = find_spec("open_clip")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model_configs"
