"""The text before a run names the memory of a finished run of the same shape, and of no other run."""

import json

from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps.measured_memory import PEAK, memory_text
from ctvr.orchestrator.tracking.tracker import Tracker, create_store


def test_memory_is_that_of_the_newest_finished_run_of_this_shape_on_a_gpu(tmp_path):
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)
    create_store(tracker.uri, tmp_path, "shapes-5")

    def record(gib: float, device: str = "cuda", complete: str = "true", method: str = "lora", **settings: object):
        experiment = resolve({"method": method, "stream": "shapes-5", "seed": int(gib), **settings})
        provenance = json.dumps({"device": device})
        tags = {"ctvr.method": method, "ctvr.complete": complete, "ctvr.provenance": provenance}
        run_id = tracker.open_run("shapes-5", f"{method}-{gib}", experiment.settings, tags=tags)
        tracker.log_task(run_id, 1, {PEAK: gib * 2**30 / 1e6})
        return run_id

    asked = resolve({"method": "lora", "stream": "shapes-10"})
    assert memory_text(tracker, asked) == []
    record(9)
    newest = record(3)
    record(20, device="cpu")
    record(21, complete="false")
    record(22, method="adapter")
    record(23, precision="bf16")
    record(24, **{"data.batch_size": 16})
    pairs = record(25, workers=2)
    assert memory_text(tracker, asked) == [f"3.0 GiB of tensors on a GPU at most, measured in run {newest[:8]}"]
    assert pairs[:8] in memory_text(tracker, asked, workers=2)[0]


def test_no_memory_is_named_while_runs_cannot_be_read(tmp_path):
    (tmp_path / "mlflow.db").write_text("damaged")
    asked = resolve({"method": "lora", "stream": "shapes-10"})
    assert memory_text(Tracker(f"sqlite:///{tmp_path}/mlflow.db", tmp_path), asked) == []
