"""Cases for the simulated GPU in addition to every method with its defaults, and the host waits allowed in each."""

import json
from pathlib import Path
from typing import Any

from ctvr.methods import CONFIGURATIONS, METHODS, find_method
from ctvr.orchestrator.config import select_prefix

EVERY = (*METHODS, *CONFIGURATIONS)
FILE = Path(__file__).parent / "budget.json"
BUDGET: dict[str, dict[str, int]] = json.loads(FILE.read_text())  # label -> phase -> waits


def preset(method: str, name: str) -> dict[str, Any]:
    """Return the settings of a method's preset that belong to the method."""
    return select_prefix(find_method(method).PRESETS[name], "method")


# Compared with the same run on the CPU. The first word is the method
CASES: dict[str, dict[str, Any]] = {
    "framefusion_moe, without pads": {},  # two ways through the experts: for a host that may look, and one that may not
    "moe_adapter, no dropout": {"dropout": 0.0},
    "structalign, in full": {},
    "camoe, in full": {},
    "ewc, around an LSTM": {"base_settings": {"sim_header": "seqLSTM"}},
    "clip_vip, interpolated": {"temporal_size": 3},
    "clip4clip, accumulated": {"optim": {"accumulation_steps": 2}},
    "clip4clip, best epoch": {"evaluation": {"select": "best"}, "optim": {"epochs": 2, "name": "adamw_hf"}},
    "er_ring, crop_flip and bert_adam": {"data": {"augment": "crop_flip"}, "optim": {"name": "bert_adam"}},
    "lump, gray_jitter and sgd": {"data": {"augment": "gray_jitter"}, "optim": {"name": "sgd", "momentum": 0.9}},
    "structalign, released": preset("structalign", "released"),
    "er_ring:framefusion_moe, prompted by task": {},
    "framefusion_moe, released": {**preset("framefusion_moe", "released"), "noisy_router": False},
    "clip4clip, missing frames": {"data": {"sampling": "one_per_second"}},
}
