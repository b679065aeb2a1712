"""Printed names of methods: the name in the paper, or ours if no paper names the method."""

from __future__ import annotations

import re

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD

PRINTED = {  # methods whose printed name differs from the name of their class
    "zero_shot": "Zero-Shot CLIP",
    "head_linear": "Linear head",
    "head_low_rank": "Low-rank head",
    "head_mlp": "MLP head",
    "head_ridge": "Ridge head",
    "clip4clip": "CLIP4Clip",
    "upper_bound": "Joint training",
    "lora": "LoRA",
    "mv_adapter": "MV-Adapter",
    "xpool": "X-Pool",
    "clip_vip": "CLIP-ViP",
    "moe_adapter": "MoE-Adapter",
    "cclip": "C-CLIP",
    "vr_lwf": "VR-LwF",
    "er_ring": "ER-Ring",
    "drift_adapter": "Drift-Adapter",
    "lambda_orthogonality": "Lambda-Orthogonality",
    "base_moco": "Base-MoCo",
    "bmu_moco": "BMU-MoCo",
    "bmu_fixed": "BMU-MoCo, fixed",
    "bmu_ensemble": "BMU-MoCo, ensemble",
    "lwf_moco": "LwF-MoCo",
    "co2l_moco": "Co2L-MoCo",
    "lump_moco": "LUMP-MoCo",
    "tome": "ToMe",
    "evit": "EViT",
    "sta": "STA",
    "diffrate": "DiffRate",
    "testa": "TESTA",
    "dgl_transformer": "DGL, transformer",
    "umt4clip": "UMT4CLIP",
    "vop_fc": "VoP, F+C",
    "bmu_moco_local": "BMU-MoCo, local",
    "er_ring_moco": "ER-Ring-MoCo",
    "der_moco": "DER-MoCo",
    "tvr_plus_cl": "TVR + CL",
}
_NAME = re.compile(r"\w+")


def printed_name(label: str) -> str:
    """Return the label of a row with the printed name of its method: `lwf (searched)` becomes `LwF (searched)`."""
    match = _NAME.match(label)
    name = match[0] if match else ""
    if label[len(name) : len(name) + 1] not in ("", " ", ":", "@") or name not in {**EVERY_METHOD, **CONFIGURATIONS}:
        return label
    return PRINTED.get(name, EVERY_METHOD.get(name, f":{name}").partition(":")[2]) + label[len(name) :]
