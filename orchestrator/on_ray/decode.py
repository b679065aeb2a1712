"""Decoding of videos on all nodes of a Ray cluster, as a Ray Data job: blocks of videos run on free CPUs.

Frames go from the decoding node to the store; only names and error messages return to the driver. When a node is lost,
its current block is decoded again on another node. After an interruption, the next job decodes the missing videos.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ctvr.orchestrator.console import say
from ctvr.orchestrator.data.frames import Broken, FrameSource
from ctvr.orchestrator.data.prepare import HERE
from ctvr.orchestrator.errors import ConfigError, StoreError, VideoError
from ctvr.orchestrator.on_ray.map_blocks import Columns, last_line, map_blocks
from ctvr.orchestrator.on_ray.nodes import alive_nodes
from ctvr.orchestrator.store.gc import USES
from ctvr.orchestrator.streams.stream import Item
from ctvr.orchestrator.video.decode import decoder_version
from ctvr.orchestrator.video.pool import Decoder

FEW = 64  # videos that this machine can decode before a job on all nodes has started


def decode_on_nodes(
    source: FrameSource, items: Sequence[Item], workers: int = 0, progress: Callable[[int], object] | None = None
) -> tuple[int, Broken]:
    """Decode missing videos on the cluster; return the number of decoded videos, and the broken videos with errors.

    Args:
        source: frames of the videos and their store.
        items: videos to decode.
        workers: maximum number of processes; 0 allows one per CPU.
        progress: receives the number of videos of each finished block.

    Raises:
        ConfigError: if a node has another store or other decoders than this process.
        StoreError: if the store rejects frames that a node decoded.
    """
    if not items:
        return 0, []
    check_nodes(source)
    reasons: dict[int, str] = {}
    for block in map_blocks(
        len(items), _decode, fn_args=(source, list(items)), num_cpus=1, concurrency=workers or None
    ):
        reasons.update(zip(block["index"].tolist(), block["reason"].tolist()))
        if progress is not None:
            progress(len(block["index"]))
    broken = [
        (items[index], VideoError(items[index].path, reason)) for index, reason in sorted(reasons.items()) if reason
    ]
    return len(items) - len(broken), broken


def _decode(block: Columns, source: FrameSource, items: list[Item]) -> Columns:
    """Decode a block of videos into the store; runs on a node.

    Return for each video the reason why it could not be decoded, and the error of the store; "" for no error.
    """
    chosen = [items[index] for index in block["index"].tolist()]
    broken: Broken = []
    failure = ""
    try:
        _, broken = source.decode_missing(chosen, pool=_decoder(source.decoder))
    except StoreError as error:
        failure = f"{error} (on {socket.gethostname()})"
    reasons = {id(item): f"{error.reason} (on {socket.gethostname()})" for item, error in broken}
    return {
        "index": block["index"],
        "reason": np.array([reasons.get(id(item), "") for item in chosen], dtype=object),
        "failure": np.array([failure] * len(chosen), dtype=object),
    }


@cache
def _decoder(name: str) -> Decoder:
    """Return the decoder subprocess of this Ray process, which decodes all its blocks and ends with it."""
    return Decoder(workers=1, decoder=name)


def decode_on_cluster(
    source: FrameSource, items: Sequence[Item], workers: int = 0, progress: Callable[[int], object] | None = None
) -> tuple[int, Broken]:
    """Decode with `decode_on_nodes` if several nodes can decode, otherwise on this machine only.

    If a node has another store, lacks the videos or has other decoders, the reason is printed. This machine also
    decodes alone if few videos are missing, or if other jobs use the CPUs of the cluster.
    """
    here = partial(source.decode_missing, items, workers or HERE, progress)
    free = ray.available_resources().get("CPU", 0.0)
    if len(items) < FEW or len(alive_nodes()) < 2 or free <= HERE:
        return here()
    try:
        check_nodes(source, items[0].path)
    except ConfigError as error:
        say(f"videos are decoded on this machine only: {error}")
        return here()
    return decode_on_nodes(source, items, workers, progress)


def check_nodes(source: FrameSource, video: str | None = None) -> None:
    """Check that all nodes use the store and decoder version of this process, and can read the videos.

    Args:
        source: frames of the videos and their store.
        video: path of a video that every node must find; None skips this check.

    Raises:
        ConfigError: if a node has another store or decoder version, or cannot read the videos; the message names it.
    """
    key = f"nodes-{secrets.token_hex(8)}"
    source.store.put_json(USES, key, {})
    try:
        asked = [
            _find_problem.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(source, key, video)
            for node in alive_nodes()
        ]
        for problem in ray.get(asked):
            if problem:
                raise ConfigError(problem)
    except RayError as error:
        raise ConfigError(f"a node of the cluster cannot decode: {last_line(error)}") from None
    finally:
        source.store.delete(USES, key)


@ray.remote(num_cpus=0)
def _find_problem(source: FrameSource, key: str, video: str | None) -> str:
    """Return the reason why the node that runs this task must not decode, in one line; "" if it may."""
    node = socket.gethostname()
    if not source.store.has(USES, key):
        return (
            f"--store: node {node} cannot access {source.store.uri} of this machine. Use a folder that all nodes "
            "share, or s3://BUCKET/PREFIX."
        )
    try:
        version = decoder_version(source.decoder)
    except ConfigError as error:
        return f"node {node}: {error}"
    if version != source.version:
        return f"node {node} decodes with {version}, but this machine with {source.version}. Install the same versions."
    if video is not None and not os.path.exists(video):
        return f"--videos: node {node} cannot access {video}. Put videos into a folder that all nodes share."
    return ""
