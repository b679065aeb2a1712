"""Footnote of rows that ran with a published learning rate of float16 weights (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# method -> its setting -> the published rate
FLOAT16: Mapping[str, Mapping[str, float]] = {
    "clip4clip": {"lr": 1e-7},
    "camoe": {"lr": 1e-7},
    "mv_adapter": {"lr": 5e-6, "lr_bias": 1e-7},
}
TEXT = "{settings}: published for float16 weights; at this rate, float32 weights change far less (docs/protocol.md)"


def float16_note(settings: Mapping[str, Any]) -> str:
    """Return the footnote of a run with these flat settings, or "" if no setting has a learning rate in `FLOAT16`."""
    found = []
    for group, method in (("method", settings.get("method")), ("base", settings.get("method.base"))):
        for name, rate in FLOAT16.get(str(method), {}).items():
            try:
                if float(settings.get(f"{group}.{name}", 0)) == rate:
                    found.append(f"{group}.{name}={rate:g}")
            except (TypeError, ValueError):  # a record of an older version
                continue
    return TEXT.format(settings=", ".join(found)) if found else ""
