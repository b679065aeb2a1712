"""`ctvr runs explain TABLE ROW COLUMN` leads from a number to its runs and to the commands that repeat them."""

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.explain_cell import explain_cell, value_of
from ctvr.orchestrator.jobs.run import run
from ctvr.orchestrator.sweeps.table import table
from ctvr.orchestrator.tracking.run_record import RunRecord


@pytest.mark.slow
def test_a_number_leads_to_its_runs_ranks_and_commands(runs, manifest):
    execution = ExecutionConfig(runs=runs)
    run({"method": "zero_shot", "stream": manifest}, (), execution)
    with pytest.raises(ConfigError, match="table 'small' does not exist. Run: ctvr table small"):
        explain_cell("small", "zero_shot", "R@1", execution)
    table(execution, stream="small")
    (record,) = execution.tracker().find_runs()
    text = explain_cell("small", "zero_shot", "R@1", execution)
    value = record.last("stream/t2v/r1")[1]
    assert f"seed 0: {value:.4f}, run {record.name} ({record.run_id})" in text
    assert record.tags["ctvr.result"] in text
    assert "ranks.json" in text
    assert "repeat    ctvr run --config " in text
    assert "bwf of zero_shot" in explain_cell("small", "zero_shot", "BWF", execution)
    with pytest.raises(ConfigError, match="no row 'zeroshot' in small. Did you mean 'zero_shot'"):
        explain_cell("small", "zeroshot", "R@1", execution)
    with pytest.raises(ConfigError, match="no column 'colour' in small. Columns: access, r1, "):
        explain_cell("small", "zero_shot", "colour", execution)


def test_a_cost_is_read_by_the_metric_and_in_the_unit_of_its_column():
    metrics = {
        "cost/video_gmacs": [(2, 53.0)],
        "cost/stored_floats_per_video": [(2, 512.0)],
        "stream/t2v/r1": [(2, 9.0)],
    }
    made = RunRecord("id", "name", {}, metrics, {}, "FINISHED", "")
    assert [value_of(made, key) for key in ("gmacs", "stored", "r1", "tokens")] == [53.0, 2.048, 9.0, None]
