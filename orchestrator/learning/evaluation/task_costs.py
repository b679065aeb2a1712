"""Costs of a model after a task (`evaluation.costs`), which can be objectives of a search.

    stream/cost/video_gmacs         multiply-adds of encoding a video, 10^9
    stream/cost/query_gmacs         multiply-adds of a query after this task, 10^9
    stream/cost/trained_parameters  parameters that the optimizer changes in this task
    stream/cost/stored_floats       values stored per video

They are counts, so equal settings have equal costs on every machine.
"""

from __future__ import annotations

import torch

from ctvr.methods.base import Method
from ctvr.methods.layers.transfer import trim_padding
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.learning.evaluation.cost import query_cost, trained_parameters, video_cost
from ctvr.orchestrator.streams.metric_names import COSTS


def task_costs(method: Method, data: StreamData, split: str, device: torch.device, tasks: int) -> dict[str, float]:
    """Return the metrics of the module docstring, from one pass over a video and one pass over a caption.

    Args:
        method: after `tasks` tasks, on `device`.
        data: data of the stream; a video and a caption of `split` are read.
    """
    plain = data.with_features(None)  # counts the whole tower, even where stored tokens enter later
    video = video_cost(method, next(plain.videos(0, split, [0], 1)))
    tokens = trim_padding(data.queries(0, split).tokens[:1]).to(device)
    return {
        f"{COSTS}video_gmacs": video.macs / 1e9,
        f"{COSTS}query_gmacs": query_cost(method, tokens, tasks)["cost/query_gmacs"],
        f"{COSTS}trained_parameters": float(trained_parameters(method)),
        f"{COSTS}stored_floats": float(video.stored),
    }
