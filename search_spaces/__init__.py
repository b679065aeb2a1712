"""Search spaces of the methods, one file per family. Each file has the dictionaries below, whose keys are methods.

FIXED: settings of every trial, if any. SPACE: setting -> Ray Tune domain. PAPER: values of SPACE's settings with which
a search begins, where they differ from the defaults. METRIC, MODE: objective of a search without
`search.metric` (default: the gain over zero-shot in the union of all galleries, in the CVLM protocol the mean R@1).
CONDITIONS: docs/search.md. A row of tables that is a method with a preset (methods.CONFIGURATIONS) has its own entry
where it differs from the method.

Other properties of a setting (not published, read by later tasks only, bounded by another setting, number of blocks)
are in the method's Config; see methods/settings.py.
"""

from typing import Any

from ctvr.search_spaces import adaptation, continual, heads, images, moco, retrievers, strategies

FAMILIES = (retrievers, heads, continual, moco, adaptation, strategies, images)
SPACES: dict[str, dict[str, Any]] = {}  # method -> its entries, by the names of the dictionaries
for _family in FAMILIES:
    for _part in ("FIXED", "SPACE", "PAPER", "METRIC", "MODE", "CONDITIONS"):
        for _name, _entry in getattr(_family, _part, {}).items():
            SPACES.setdefault(_name, {})[_part] = _entry
