"""Selection of parameters of `Clip` by module or parameter name: `vision.conv1`, `text.blocks.0`, `logit_scale`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from torch import nn

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.settings import SettingError


def parts(clip: Clip, names: Sequence[str], setting: str = "frozen") -> list[nn.Parameter]:
    """Return the parameters of the named parts, each once.

    Args:
        clip: the backbone.
        names: names of parameters, or of modules that contain parameters.
        setting: the setting that lists the names, for the error message.

    Raises:
        ValueError: for a name that matches no part of CLIP.
    """
    known = dict(clip.named_parameters())
    found: dict[int, nn.Parameter] = {}
    for name in names:
        inside = [p for own, p in known.items() if own == name or own.startswith(f"{name}.")]
        if not inside:
            every = sorted({own.rpartition(".")[0] or own for own in known} | set(known))
            close = difflib.get_close_matches(name, every, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Some of its parts: {', '.join(every[:4])}."
            raise SettingError(f"<{setting}>: the backbone has no part called {name!r}", hint)
        found |= {id(p): p for p in inside}
    return list(found.values())
