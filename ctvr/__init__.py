"""Continual text-to-video retrieval in Python: training, searches of settings, tables, and queries to a model.

    import ctvr

    ctvr.run("clip4clip", "shapes-5", settings={"optim.epochs": 1})
    model = ctvr.load("clip4clip")
    for hit in model.search("a large orange cell splits into two pieces over a red triangle", k=5):
        print(hit.rank, hit.score, hit.path)

`import ctvr` is fast, because each name is imported on first use. Settings have the same names and values as on the
command line. A `ctvr.ConfigError` states the setting, the fault and the remedy in one line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import ctvr.interrupt  # noqa: F401 - before the next imports, which take time
from ctvr.kernels import pin
from ctvr.torch_import import guard

if TYPE_CHECKING:
    from ctvr.api import check_method, list_methods, list_streams, load, run, schema, stream, sweep, table, trials
    from ctvr.methods.backbone.blocks import BlockSeams, TokenState
    from ctvr.methods.backbone.clip import Clip
    from ctvr.methods.base import Method, l2_normalize
    from ctvr.methods.capabilities import Capabilities
    from ctvr.methods.data import Batch, PairSource, ParamGroup, Position, SeparableEncoders, Task
    from ctvr.methods.families.strategy import ReplayConfig, ReplayStrategy, Strategy
    from ctvr.methods.layers.deep_prompts import drop_prompts, insert_prompts
    from ctvr.methods.layers.frozen import Frozen
    from ctvr.methods.layers.losses.contrastive import contrastive
    from ctvr.methods.layers.pooling import mean_pool
    from ctvr.methods.layers.tower_lora import TowerLoRA, weighted_seams
    from ctvr.methods.settings import SettingError, group, require, setting
    from ctvr.orchestrator.errors import ConfigError, CtvrError
    from ctvr.orchestrator.retrieval.hits import Hit, Hits
    from ctvr.orchestrator.retrieval.model import Model
    from ctvr.orchestrator.retrieval.mteb import MtebEncoder
    from ctvr.orchestrator.streams.stream import Stream
    from ctvr.results import Run, Sweep

pin()
guard()

_PUBLIC = {
    name: module
    for module, names in (
        ("ctvr.api", "run sweep table trials load list_streams stream list_methods check_method schema"),
        ("ctvr.results", "Run Sweep"),
        ("ctvr.methods.backbone.blocks", "BlockSeams TokenState"),
        ("ctvr.methods.backbone.clip", "Clip"),
        ("ctvr.methods.base", "Method l2_normalize"),
        ("ctvr.methods.capabilities", "Capabilities"),
        ("ctvr.methods.data", "Batch PairSource ParamGroup Position SeparableEncoders Task"),
        ("ctvr.methods.families.strategy", "ReplayConfig ReplayStrategy Strategy"),
        ("ctvr.methods.layers.deep_prompts", "drop_prompts insert_prompts"),
        ("ctvr.methods.layers.frozen", "Frozen"),
        ("ctvr.methods.layers.losses.contrastive", "contrastive"),
        ("ctvr.methods.layers.pooling", "mean_pool"),
        ("ctvr.methods.layers.tower_lora", "TowerLoRA weighted_seams"),
        ("ctvr.methods.settings", "SettingError group require setting"),
        ("ctvr.orchestrator.errors", "CtvrError ConfigError"),
        ("ctvr.orchestrator.retrieval.hits", "Hit Hits"),
        ("ctvr.orchestrator.retrieval.model", "Model"),
        ("ctvr.orchestrator.retrieval.mteb", "MtebEncoder"),
        ("ctvr.orchestrator.streams.stream", "Stream"),
    )
    for name in names.split()
}
__all__ = [
    "Batch",
    "BlockSeams",
    "Capabilities",
    "Clip",
    "ConfigError",
    "CtvrError",
    "Frozen",
    "Hit",
    "Hits",
    "Method",
    "Model",
    "MtebEncoder",
    "PairSource",
    "ParamGroup",
    "Position",
    "ReplayConfig",
    "ReplayStrategy",
    "Run",
    "SeparableEncoders",
    "SettingError",
    "Strategy",
    "Stream",
    "Sweep",
    "Task",
    "TokenState",
    "TowerLoRA",
    "check_method",
    "contrastive",
    "drop_prompts",
    "group",
    "insert_prompts",
    "l2_normalize",
    "list_methods",
    "list_streams",
    "load",
    "mean_pool",
    "require",
    "run",
    "schema",
    "setting",
    "stream",
    "sweep",
    "table",
    "trials",
    "weighted_seams",
]


def __getattr__(name: str) -> Any:
    if name == "methods":
        return importlib.import_module("ctvr.methods")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ctvr' has no attribute {name!r}. Public names: {', '.join(__all__)}.")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
