"""A whole table on a real Ray: rows share the cluster, a failed row does not end it, and resuming repeats nothing."""

import json
import re
from dataclasses import replace

import pytest

from ctvr.orchestrator.errors import RunsFailed
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.plan import GAIN
from ctvr.orchestrator.sweeps.plan import SweepRequest
from ctvr.orchestrator.sweeps.sweep import resume, sweep
from ctvr.orchestrator.tables.claims import chosen, preset_of
from ctvr.orchestrator.tables.presets import parse_preset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000), pytest.mark.usefixtures("two_cpus")]

LOST = {"name": "lora", "settings": {"optim.lr_scale": 1e12}}  # every trial of which diverges


def test_table_continues_after_a_row_fails(runs, manifest, capsys):
    execution = ExecutionConfig(runs=runs)
    data = {"title": "Two rows and a lost one", "protocol": "ctvr", "stream": manifest, "seeds": 1}
    rows = [LOST, {"name": "clip4clip", "notes": ["as in its paper"]}, {"name": "zero_shot", "searched": False}]
    preset = parse_preset({**data, "search": {"trials": 2, "bracket_size": 2, "min_survivors": 1}, "rows": rows})
    request = SweepRequest("t", manifest, preset, {"optim.epochs": "1"})
    with pytest.raises(RunsFailed, match="rows without a winner, missing from the table: lora") as ended:
        sweep(request, execution)
    text, said = str(ended.value), capsys.readouterr().err

    assert "2 for each row, 4 in all, at random, scheduler halving in brackets of 2" in said
    failed = re.findall(r"trial \d/2 lora  failed: task_01, epoch 1: the (?:loss|gradient) is not finite.*", said)
    assert ["Lower the learning rates" in line for line in failed] == [True] * 2
    assert "lora: 0 complete, 0 stopped early, 2 failed; no trial is complete" in said
    assert "small: Two rows and a lost one" in text
    names = [line.split()[0] for line in text.splitlines() if line.startswith(("clip4clip ", "zero_shot "))]
    assert names == ["clip4clip", "zero_shot"]  # the table's order
    written = "".join(file.read_text() for file in sorted((execution.runs / "tables").rglob("*.md")))
    assert "settings of the best of 2 trials by R@1 gain over zero-shot on val videos" in written

    tracker = execution.tracker()
    for name, status in (("t", "FAILED"), ("t-lora", "FAILED"), ("t-clip4clip", "FINISHED")):
        parent = tracker.find_sweep(name)
        assert parent is not None
        assert parent.status == status
    searched = tracker.find_runs(sweep="t-clip4clip")
    assert len(searched) == 2
    assert sorted(run.tags.get("ctvr.stopped", "") for run in searched) == ["", "halving after task 1"]
    assert [len(run.metrics[GAIN]) for run in searched if not run.tags.get("ctvr.stopped")] == [3]
    assert {run.status for run in searched} == {"FINISHED"}
    assert {run.settings["evaluation.split"] for run in searched} == {"val"}
    lost = tracker.find_runs(sweep="t-lora")  # each tried once: a non-finite loss is permanent
    assert [run.status for run in lost] == ["FAILED"] * 2
    assert all("is not finite" in run.tags["ctvr.error"] for run in lost)
    final = {run.tags["ctvr.rerun_of"] for run in tracker.find_runs(tags={"ctvr.role": "final"})}
    assert final == {"t"}

    # Resumed, the lost row is tried again; the others run nothing, and the table is the same
    with pytest.raises(RunsFailed) as again:
        resume("t", execution)
    said = capsys.readouterr().err
    assert "2 runs, 2 of them already complete" in said
    assert "clip4clip  task" not in said
    assert str(again.value) == text
    assert len(tracker.find_runs(sweep="t-clip4clip")) == 2


def test_claims_are_judged_after_their_rows_and_again_on_resume(runs, manifest):
    execution = ExecutionConfig(runs=runs)
    preset = replace(preset_of(chosen(["clip-dsl"]), manifest), seeds=1)
    text = sweep(SweepRequest("c", manifest, preset, {}), execution)
    assert text.count("1 claim: ") == 1
    assert "0 not run" in text
    written = json.loads((execution.runs / "tables" / "c" / "claims.json").read_text())
    (judged,) = written["claims"]
    tracker = execution.tracker()
    for mean, row in zip(judged["means"], ("CLIP with DSL", "zero_shot")):
        (run,) = tracker.find_runs(tags={"ctvr.rerun_of": "c", "ctvr.row": row})
        assert run.last("stream/t2v/r1")[1] == pytest.approx(mean)
    assert judged["verdict"] == "not judged"  # the R@1 of a few videos is not distinguishable from chance
    assert resume("c", execution).endswith(text[text.index("claims on small") :])
