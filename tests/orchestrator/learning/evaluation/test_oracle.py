import pytest
import torch

from ctvr.methods.base import Capabilities, Method
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.learning.evaluation.evaluate import compute_ranks
from ctvr.orchestrator.learning.evaluation.oracle import oracle_metrics
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.resolve import resolve

CPU = torch.device("cpu")
SIZES = (4, 5, 3)


class Prompted(Method):
    """Looks up captions in a table; the searched task's prompt rotates the feature."""

    def __init__(self, table, turns, is_calibrated=False) -> None:
        super().__init__()
        self.table, self.turns, self.is_calibrated = table, turns, is_calibrated
        self.declared = Capabilities(task_conditioned_text=turns is not None, normalizes_scores=is_calibrated)

    def encode_text(self, tokens, task=None):
        rows = self.table[tokens[:, 0]]
        return rows if task is None or self.turns is None else rows @ self.turns[task]

    def normalize_scores(self, scores):
        return scores - scores.mean(dim=0) if self.is_calibrated else scores


def made(seed, **more):
    torch.manual_seed(seed)
    total, d = sum(SIZES), 6
    table, galleries = torch.randn(total, d), [torch.randn(size, d) for size in SIZES]
    queries, first = [], 0
    for task, size in enumerate(SIZES):
        tokens = torch.arange(first, first + size)[:, None]
        queries.append(Queries(tokens, torch.arange(size), torch.full((size,), -1), task=task))
        first += size
    return Prompted(table, torch.randn(len(SIZES), d, d), **more), queries, galleries


def asked(method, queries, galleries, config=EvaluationConfig(query_chunk=2)):  # noqa: B008 (frozen)
    usual = compute_ranks(method, queries, galleries, config, CPU, "ctvr")
    return oracle_metrics(method, queries, galleries, usual, config, CPU, lambda encode, rows: encode(rows)), usual


@pytest.mark.parametrize("is_calibrated", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_three_numbers_are_those_of_a_loop_over_captions(seed, is_calibrated):
    method, queries, galleries = made(seed, is_calibrated=is_calibrated)
    found, usual = asked(method, queries, galleries)
    task_of = torch.cat([torch.full((size,), task) for task, size in enumerate(SIZES)])
    videos = torch.cat(galleries)
    by_block = torch.stack([method.table @ method.turns[task] @ video for task, video in zip(task_of, videos)], dim=1)
    told = torch.stack([row @ method.turns[task] @ videos.T for row, task in zip(method.table, task_of)])
    by_block, told = method.normalize_scores(by_block), method.normalize_scores(told)
    own = torch.arange(len(videos))
    assert found["stream/oracle/r1"] == pytest.approx(100 * (told.argmax(dim=1) == own).double().mean().item())
    assert found["stream/oracle/right"] == pytest.approx(
        100 * (task_of[by_block.argmax(dim=1)] == task_of).double().mean().item()
    )
    assert found["stream/oracle/r1_block"] == pytest.approx(100 * (usual.own.rank == 1).double().mean().item())


def test_without_prompts_only_the_gallery_is_reported():
    method, queries, galleries = made(1)
    method.turns, method.declared = None, Capabilities()
    found, usual = asked(method, queries, galleries)
    assert found["stream/oracle/r1"] == pytest.approx(100 * (usual.to_videos.rank == 1).double().mean().item())
    assert found["stream/oracle/r1_block"] >= found["stream/oracle/r1"]


def test_equally_good_videos_of_several_tasks_count_by_their_share():
    method, queries, galleries = made(1)
    method.turns, method.declared = None, Capabilities()
    found, _ = asked(method, queries, [torch.zeros_like(gallery) for gallery in galleries])
    shares = [size / sum(SIZES) for size in SIZES for _ in range(size)]
    assert found["stream/oracle/right"] == pytest.approx(100 * sum(shares) / len(shares))


def test_it_adds_numbers_and_changes_none(small_stream, manifest, runs):
    plain = {"method": "framefusion_moe", "stream": manifest, "optim.epochs": 1}
    without, told = (
        resolve({**plain, **more}, small_stream.settings) for more in ({}, {"evaluation.oracle_task": True})
    )
    assert without.key(small_stream) != told.key(small_stream)
    assert without.key(small_stream) == resolve({**plain, "evaluation.oracle_task": False}, small_stream.settings).key(
        small_stream
    )
    first, second = (execute(each, RunPaths(runs), reuse=False).record.metrics[-1] for each in (without, told))
    added = {name: value for name, value in second.items() if name not in first}
    assert set(added) == {f"stream/oracle/{name}" for name in ("r1", "r1_block", "right")}
    assert {name: second[name] for name in first} == first
