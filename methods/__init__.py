"""The table of methods. Strings, so that nothing is imported before it is asked for.

To add a method: its file, one line here, `search_spaces/<name>.py`, `tests/methods/test_<name>.py`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from methods.base import Method

METHODS = {
    "zero_shot": "methods.zero_shot:ZeroShot",
    "clip4clip": "methods.clip4clip:Clip4Clip",
    "upper_bound": "methods.upper_bound:UpperBound",
    "framefusion_moe": "methods.framefusion_moe:FrameFusionMoE",
    "structalign": "methods.structalign:StructAlign",
    "camoe": "methods.camoe:CAMoE",
    "dsl": "methods.dsl:DSL",
    "lora": "methods.lora:Lora",
    "prompt": "methods.prompt:Prompt",
    "adapter": "methods.adapter:Adapter",
    "tempme": "methods.tempme:TempMe",
    "xpool": "methods.xpool:XPool",
    "clip_vip": "methods.clip_vip:CLIPViP",
    "moe_adapter": "methods.moe_adapter:MoEAdapter",
    "lwf": "methods.lwf:LwF",
    "vr_lwf": "methods.vr_lwf:VRLwF",
    "zscl": "methods.zscl:ZSCL",
    "er_ring": "methods.er_ring:ERRing",
    "der": "methods.der:DER",
    "ewc": "methods.ewc:EWC",
    "co2l": "methods.co2l:Co2L",
    "lump": "methods.lump:LUMP",
    "base_moco": "methods.base_moco:BaseMoCo",
    "bmu_moco": "methods.bmu_moco:BMUMoCo",
    "bmu_fixed": "methods.bmu_fixed:BMUFixed",
    "bmu_ensemble": "methods.bmu_ensemble:BMUEnsemble",
    "lwf_moco": "methods.lwf_moco:LwFMoCo",
    "co2l_moco": "methods.co2l_moco:Co2LMoCo",
    "lump_moco": "methods.lump_moco:LUMPMoCo",
}

# Rows of published tables that are a method and a preset. The names work wherever a method's does. Where the method
# has a preset `<preset>-<other>`, that is what `<other>` means under the row's name: `er_ring_moco` with `paper` is
# `er_ring` with `bmu-moco-paper`. What a search of the row does differently is in the method's search space.
CONFIGURATIONS = {
    "tome": ("lora", "tome"),
    "bmu_moco_local": ("bmu_moco", "local"),
    "er_ring_moco": ("er_ring", "bmu-moco"),
    "der_moco": ("der", "bmu-moco"),
    "tvr_plus_cl": ("vr_lwf", "tvr-plus-cl"),
}


def find_method(name: str) -> type[Method]:
    """The class of a method, or of the method that a configuration names.

    Raises:
        ValueError: for an unknown name; the message suggests a known one.
    """
    name, asked = CONFIGURATIONS.get(name, (name, ""))[0], name
    if name not in METHODS:
        close = difflib.get_close_matches(name, [*METHODS, *CONFIGURATIONS], n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise ValueError(f"no method called {asked!r}. {hint}All: `ctvr methods`.")
    module, _, cls = METHODS[name].partition(":")
    return getattr(importlib.import_module(module), cls)
