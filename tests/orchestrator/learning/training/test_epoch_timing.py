"""Speed and waiting time of an epoch are measured and committed, and do not affect results."""

import time

import pytest
import torch

from ctvr.methods.base import Batch
from ctvr.orchestrator.learning.record.commits import digest_of_commit
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.epoch_timing import CLIPS, MEMORY, WAIT, EpochTimer, training_costs


def batch(count: int) -> Batch:
    zeros = torch.zeros(count, dtype=torch.int64)
    return Batch(torch.zeros(count, 1, 3, 2, 2), zeros[:, None], zeros, zeros)


def test_waiting_is_the_time_until_a_batch_is_ready_and_work_is_not():
    def slow():
        for count in (3, 2):
            time.sleep(0.2)
            yield batch(count)

    timer = EpochTimer(torch.device("cpu"))
    started = time.perf_counter()
    sizes = []
    for each in timer.iterate(slow()):
        sizes.append(len(each.video_ids))
        time.sleep(0.2)
    found = timer.read(Workers())
    assert sizes == [3, 2]
    assert found[CLIPS] == pytest.approx(5 / (time.perf_counter() - started), rel=0.2)
    assert 0.3 < found[WAIT] < 0.7
    assert found[MEMORY] > 50  # a process with torch


def test_a_run_without_training_has_no_training_cost():
    assert training_costs([]) == {}
    epochs = [{CLIPS: speed, WAIT: 0.1, MEMORY: memory} for speed, memory in ((1.0, 30.0), (4.0, 50.0), (3.0, 40.0))]
    assert training_costs(epochs) == {"cost/train_clips_per_second": 3.0, "cost/train_memory_mb": 50.0}


def test_measurements_are_not_part_of_a_commits_digest():
    record = {"done": 1, "metrics": [{"a": 1.0}], "seconds": [1.0], "timing": [{"step": 1.0, CLIPS: 2.0}]}
    commit = {"weights": "w", "galleries": [], "record": record}
    slower = {**commit, "record": {**record, "seconds": [2.0], "timing": []}}
    assert digest_of_commit(commit) == digest_of_commit(slower)
    assert digest_of_commit(commit) != digest_of_commit({**commit, "record": {**record, "done": 2}})
