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
    "tome": "methods.tome:ToMe",
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
    "bmu_moco_local": "methods.bmu_moco_local:BMUMoCoLocal",
    "bmu_fixed": "methods.bmu_fixed:BMUFixed",
    "bmu_ensemble": "methods.bmu_ensemble:BMUEnsemble",
    "lwf_moco": "methods.lwf_moco:LwFMoCo",
    "er_ring_moco": "methods.er_ring_moco:ERRingMoCo",
    "der_moco": "methods.der_moco:DERMoCo",
    "co2l_moco": "methods.co2l_moco:Co2LMoCo",
    "lump_moco": "methods.lump_moco:LUMPMoCo",
}

CONFIGURATIONS = {  # rows of published tables that are a method and a preset
    "tvr_plus_cl": ("vr_lwf", "tvr-plus-cl"),
}


def find_method(name: str) -> type[Method]:
    """The class of a method.

    Raises:
        ValueError: for an unknown name; the message suggests a known one.
    """
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise ValueError(f"no method called {name!r}. {hint}All: `ctvr methods`.")
    module, _, cls = METHODS[name].partition(":")
    return getattr(importlib.import_module(module), cls)
