"""Descriptions of settings: the comment next to or above the field in the source, or the text in this file."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap

# Fields without a comment in the source. The class precedes the dot if the name is ambiguous
WORDS = {
    "RunConfig.method": "method, a name of `ctvr methods` or `module:Class`",
    "RunConfig.stream": "stream, a name of `ctvr streams` or a manifest file",
    "RunConfig.seed": "seed of all random numbers",
    "RunConfig.precision": "precision of the forward pass; weights and optimizer are always float32; tf32 needs a GPU",
    "DataConfig.num_frames": "number of frames of a video",
    "OptimConfig.weight_decay": "weight decay of the tensors in `optim.decay_parameters`, times the rate",
    "OptimConfig.betas": "decay rates of AdamW's moments",
    "OptimConfig.eps": "constant in AdamW's denominator",
    "OptimConfig.schedule": "schedule of the learning rates after the warm-up: docs/recipes.md",
    "OptimConfig.warmup_tasks": "tasks with a warm-up",
    "SearchConfig.trials": "number of trials",
    "SearchConfig.metric": "metric that compares trials; a method's search space may have another default",
    "SearchConfig.mode": "whether the metric is maximized or minimized",
    "max_scale": "upper bound of 1 / temperature, after every step",
    "frame_norm": "whether each frame's feature has length 1 before the mean",
    "loss_reduction": "whether the two directions of the contrastive loss are halved or summed",
    "reducer": "token reduction in the vision tower",
    "UpperBoundConfig.base": "any retriever; its settings are base.*",
    "FrameFusionMoEConfig.lr_text": "rate of the text experts, later tasks; section 4.4: 4e-6 (MSRVTT), 6e-6 (ACTNET)",
    "lr_vision": "learning rate of frame fusion in later tasks",
    "lr_other": "learning rate of alpha and prototypes in later tasks",
    "lr_vision_first": "learning rate of frame fusion in task 1; the paper is silent",
    "lr_other_first": "learning rate of alpha and prototypes in task 1; the paper is silent",
    "text_rank": "rank of the text experts' matrices",
    "text_dropout": "dropout on the text experts' input",
    "vision_rank": "rank of the vision experts' matrices",
    "prototypes": "eq. 7: the ETF itself, or learned with a penalty on the distance from it",
    "crp_rows": "direction whose relations are preserved",
    "CAMoEConfig.fusion": "weighting of frames for the sentence",
    "CAMoEConfig.entity": "weighting of frames for the entities",
    "CAMoEConfig.action": "weighting of frames for the actions",
    "CAMoEConfig.tasks": "sentence: the single task of table 4, with experts and gate; the paper is silent",
    "CAMoEConfig.sentences": "conversion of captions to sentences of entities and actions, table 5: muw, rkw or akwe",
    "CAMoEConfig.num_frames": "number of frames for which se and attention have weights; videos may have fewer",
    "merge_to": "as prune_to, for merged tokens",
    "AdapterConfig.bottleneck": "width of an adapter",
    "AdapterConfig.placement": "position in a block",
    "MoEAdapterConfig.bottleneck": "width of an expert",
    "XPoolConfig.dropout": "dropout in X-Pool's pooling",
    "proxy_init": "initialization of the video proxies",
    "text_gate": "token of a caption that the router reads: its first or its last",
    "DERConfig.alpha": "weight of the distance to the stored outputs",
    "DERConfig.target": "output of a pair that is stored and distilled",
    "ird": "distilled relations: between the modalities, or within each",
    "queue_init": "whether queues start empty or with random keys",
    "use_local": "whether to keep the momentum encoders of the present task",
    "use_global": "whether to keep the momentum encoders of all tasks",
    "order": "whether the encoders or their momentum encoders move first in a step",
    "LwFMoCoConfig.alpha": "weight of the distillation",
    "distill": "queue_kl: over the pair's own key and the queue, the same for both; "
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
