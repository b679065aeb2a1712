"""Descriptions of settings: the comment next to or above the field in the source, or the text in this file."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap

# Fields without a comment in the source. The class precedes the dot if the name is ambiguous
WORDS = {
    "RunConfig.method": "a name of `ctvr methods`, or `module:Class`",
    "RunConfig.stream": "a name of `ctvr streams`, or a manifest file",
    "RunConfig.seed": "of everything that is drawn",
    "RunConfig.precision": "of the forward pass; weights and optimizer are float32 in all; tf32 acts on GPUs alone",
    "DataConfig.num_frames": "frames of a video",
    "OptimConfig.weight_decay": "of the tensors that `optim.decay_parameters` names, times the rate",
    "OptimConfig.betas": "of the moments of AdamW",
    "OptimConfig.eps": "of AdamW's denominator",
    "OptimConfig.schedule": "of the rates, after the warm-up: docs/recipes.md",
    "OptimConfig.warmup_tasks": "which tasks warm up",
    "SearchConfig.trials": "settings that are tried",
    "SearchConfig.metric": "what trials are compared by; a method's search space may name another",
    "SearchConfig.mode": "whether the largest or the smallest is best",
    "max_scale": "upper bound of 1 / temperature, after every step",
    "frame_norm": "whether each frame's feature has length 1 before the mean",
    "loss_reduction": "whether the two directions of the contrastive loss are halved or summed",
    "reducer": "fewer tokens in the vision tower",
    "UpperBoundConfig.base": "any retriever; its settings are base.*",
    "FrameFusionMoEConfig.lr_text": "of the caption's experts, later tasks; section 4.4: 4e-6 (MSRVTT), 6e-6 (ACTNET)",
    "lr_vision": "of frame fusion, later tasks",
    "lr_other": "of alpha and prototypes, later tasks",
    "lr_vision_first": "of frame fusion, task 1; silent",
    "lr_other_first": "of alpha and prototypes, task 1; silent",
    "text_rank": "of the text experts' matrices",
    "text_dropout": "on the text experts' input",
    "vision_rank": "of the vision experts' matrices",
    "prototypes": "eq. 7: the ETF itself, or learned with a penalty on the distance from it",
    "crp_rows": "which direction's relations are preserved",
    "CAMoEConfig.fusion": "how frames are weighted for the sentence",
    "CAMoEConfig.entity": "how frames are weighted for the entities",
    "CAMoEConfig.action": "how frames are weighted for the actions",
    "CAMoEConfig.tasks": "sentence: the single task of table 4, experts and gate kept (silent)",
    "CAMoEConfig.sentences": "how captions become sentences of entities and actions, table 5: muw, rkw or akwe",
    "CAMoEConfig.num_frames": "se and attention have weights for so many; videos may have fewer",
    "merge_to": "as prune_to, for what is merged",
    "AdapterConfig.bottleneck": "width of an adapter",
    "AdapterConfig.placement": "position in a block",
    "MoEAdapterConfig.bottleneck": "width of an expert",
    "XPoolConfig.dropout": "in X-Pool's pooling",
    "proxy_init": "what the video proxies start from",
    "text_gate": "which token of a caption the router reads: its first or its last",
    "DERConfig.alpha": "weight of the distance to the stored answers",
    "DERConfig.target": "what is stored of a pair and held",
    "ird": "which relations are distilled: between the modalities, or within each",
    "queue_init": "whether queues start empty or with random keys",
    "use_local": "keep the momentum encoders of the present task",
    "use_global": "keep the momentum encoders of all tasks",
    "order": "whether the encoders or their momentum encoders move first in a step",
    "LwFMoCoConfig.alpha": "weight of the distillation",
    "distill": "queue_kl: over the pair's own key and the queue, seen alike by both; "
    "feature_l2: ||q - q*||^2 in both modalities",
}


def field_docs(config: type) -> dict[str, str]:
    """Return field -> description for the described fields of a dataclass of settings."""
    found: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        if dataclasses.is_dataclass(cls):
            found |= _field_comments(cls)
            for field in dataclasses.fields(cls):
                if words := WORDS.get(f"{cls.__name__}.{field.name}"):
                    found[field.name] = words
    names = [field.name for field in dataclasses.fields(config)]
    said = {name: found.get(name) or WORDS.get(name, "") for name in names}
    return {name: words for name, words in said.items() if words}


def _field_comments(cls: type) -> dict[str, str]:
    """Return the comments on the lines of each field, else those directly above it."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines, found = source.splitlines(), {}
    (node,) = ast.parse(source).body
    for statement in getattr(node, "body", []):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        inline = [line.partition("  # ")[2] for line in lines[first:last] if "  # " in line]
        above: list[str] = []
        while first > 0 and lines[first - 1].strip().startswith("# "):
            first -= 1
            above.insert(0, lines[first].strip()[2:])
        if inline or above:
            found[statement.target.id] = " ".join(inline or above)
    return found
