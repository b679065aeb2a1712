"""Table of the methods that fit a backbone, for `ctvr methods --backbone`."""

from __future__ import annotations

from ctvr.methods import METHODS, plugins
from ctvr.methods.backbone.architectures import SHIPPED
from ctvr.methods.backbone.load import brings_weights
from ctvr.methods.backbone.own_architecture import is_own
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.run.factory import load_clip
from ctvr.orchestrator.learning.run.tower_parts import describe_offer, missing_parts
from ctvr.orchestrator.settings.experiment import BackboneConfig
from ctvr.orchestrator.settings.resolve import resolve


def compatible_methods_text(backbone: str) -> str:
    """Return a line for each method with its default settings: whether it fits, or the parts that the backbone lacks.

    Args:
        backbone: value of `backbone.name`.

    Raises:
        ConfigError: for a backbone that cannot be loaded.
    """
    has_own = not is_own(backbone) and (brings_weights(backbone) or backbone in SHIPPED)
    usual = "shipped" if has_own else "random"  # which methods fit does not depend on the weights
    clip = load_clip(BackboneConfig(name=backbone, weights=usual))
    given: Settings = {"stream": "", "backbone.name": backbone, "backbone.weights": "random"}
    lines = [f"{backbone}: {describe_offer(clip)}", ""]
    names = (*METHODS, *plugins())
    for name in names:
        try:
            missing = missing_parts(resolve({**given, "method": name}), clip)
            found = f"needs {', '.join(missing)}" if missing else "fits"
        except ConfigError as error:  # of another package's method
            found = f"cannot be tried ({error})"
        lines.append(f"{name:<{max(map(len, names))}}  {found}")
    return "\n".join(lines)
