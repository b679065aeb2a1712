"""Latency of `ctvr serve`: the time of GET /search on one core, from the request to the end of the response.

The service and its client are threads of this process and share one core. Features and weights are random, which does
not change the time. Every query is a different text.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
import torch.nn.functional as F

from ctvr.methods.backbone.architectures import TINY
from ctvr.orchestrator.learning.run.factory import TrainedModel, load_clip, make_method
from ctvr.orchestrator.retrieval.model import Block, Model
from ctvr.orchestrator.serving.app import Service
from ctvr.orchestrator.serving.server import Server, bind
from ctvr.orchestrator.serving.snapshot import Snapshot
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item
from tools.bench.reference import captions_like_msrvtt
from tools.bench.work import VIT

SIZES = {480: 60.0, 100_000: 200.0}  # videos -> target of the 99th percentile in ms


@dataclass(frozen=True)
class Latency:
    """Latency of queries to a gallery, in milliseconds."""

    backbone: str
    videos: int
    queries: int
    p50: float
    p99: float
    cpu: float  # mean CPU time of service and client, which is the mean latency on an idle machine
    goal: float


def measure_service(root: Path, is_toy: bool, sizes: Sequence[int] = tuple(SIZES)) -> list[Latency]:
    """Measure the latency of queries to random galleries of several sizes.

    Args:
        root: folder for the store.
        is_toy: whether to use the tiny CLIP and few queries.
        sizes: number of videos of each gallery.

    Raises:
        RuntimeError: if a response does not contain the most similar videos.
    """
    backbone, queries = (TINY, 50) if is_toy else (VIT, 500)
    settings = {"method": "clip4clip", "stream": "shapes-5", "backbone.name": backbone, "backbone.weights": "random"}
    experiment = resolve({**settings, **({"backbone.weights": "shipped"} if is_toy else {})})
    clip = load_clip(experiment.backbone)
    trained = TrainedModel(make_method(experiment, clip).eval(), experiment, clip)
    rows = []
    for size in sizes:
        model = Model("bench", trained, Store.open(str(root / "store")), device=torch.device("cpu"))
        generator = torch.Generator().manual_seed(0)
        features = F.normalize(torch.randn(size, clip.embed_dim, generator=generator), dim=-1)
        items = tuple(Item(f"video_{number}", "", None, "", ()) for number in range(size))
        model.set_gallery([Block(items, features, 0, "task_01")])
        with one_core(), served(Snapshot(model, "bench")) as port:
            took, cpu = ask(port, model, queries)
        p50, p99 = map(float, np.percentile(took, [50, 99]))
        rows.append(Latency(backbone[:8], size, queries, p50, p99, cpu, SIZES.get(size, float("nan"))))
    return rows


def ask(port: int, model: Model, queries: int) -> tuple[list[float], float]:
    """Return the latency of each query after a warm-up, and the mean CPU time per query, both in ms."""
    connection, took = http.client.HTTPConnection("127.0.0.1", port, timeout=60), list[float]()
    (block,) = model.gallery()
    for number, text in enumerate(captions_like_msrvtt(queries + 10)):
        begun = time.perf_counter()
        connection.request("GET", f"/search?q={quote(text)}&k=10")
        hits = json.loads(connection.getresponse().read())["hits"]
        took.append(1000 * (time.perf_counter() - begun))
        if number < 10:
            scores = F.normalize(model.encode_text(text), dim=-1) @ F.normalize(block.features, dim=-1).mT
            best = [block.items[column].video for column in scores[0].argsort(descending=True)[:10]]
            if [hit["video"] for hit in hits] != best:
                raise RuntimeError("the service does not return the best videos")
            used = time.process_time()
    connection.close()
    return took[10:], 1000 * (time.process_time() - used) / queries


@contextmanager
def one_core() -> Iterator[None]:
    """Context manager: run this thread, and threads that it starts, on one core."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def served(snapshot: Snapshot) -> Iterator[int]:
    """Context manager: run the service in a thread, and yield its port on 127.0.0.1."""
    service = Service(lambda: snapshot)
    server = Server(service.app)
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        port = int(bound.getsockname()[1])
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        try:
            yield port
        finally:
            server.handle_exit(2, None)
            thread.join(10)
            service.close()


def to_markdown(rows: Sequence[Latency]) -> str:
    """Format the rows as a Markdown table."""
    lines = ["| service | videos | queries | p50 ms | p99 ms | CPU ms | goal: p99 ms |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    lines += [
        f"| GET /search, clip4clip, {row.backbone} | {row.videos} | {row.queries} | {row.p50:.1f} | {row.p99:.1f} "
        f"| {row.cpu:.1f} | < {row.goal:g} |"
        for row in rows
    ]
    return "\n".join(lines)
