"""Search spaces of the methods, one file per family. A file has some of these dictionaries, whose keys are methods:

FIXED: settings with the same value in every trial.
SPACE: setting -> Ray Tune domain.
PAPER: values of settings in SPACE for the first trial of a search, where they differ from the defaults.
METRIC, MODE: objective of a search if `search.metric` is not set (default: the gain in R@1 over zero-shot CLIP in the
union of all galleries; in the protocol CVLM, the mean R@1).
CONDITIONS: settings that exist only for some values of another setting; see docs/search.md.

A table row that is a method with a preset (methods.CONFIGURATIONS) has its own entry where it differs from the method.
The method's Config declares other properties of a setting (not published, read by later tasks only, bounded by another
setting, number of blocks); see methods/settings.py.
"""

from typing import Any

from ctvr.search_spaces import adaptation, continual, heads, images, moco, retrievers, strategies

FAMILIES = (retrievers, heads, continual, moco, adaptation, strategies, images)
SPACES: dict[str, dict[str, Any]] = {}  # method -> its entries, by the names of the dictionaries
for _family in FAMILIES:
    for _part in ("FIXED", "SPACE", "PAPER", "METRIC", "MODE", "CONDITIONS"):
        for _name, _entry in getattr(_family, _part, {}).items():
            SPACES.setdefault(_name, {})[_part] = _entry
