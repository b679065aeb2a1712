"""Resumption of an interrupted sweep or table from its plan (`ctvr sweep --resume`)."""

from __future__ import annotations

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.resolve import named_in
from ctvr.orchestrator.on_ray.plan import read_plan
from ctvr.orchestrator.output_dir import check_name
from ctvr.orchestrator.sweeps import sweep, table_sweep
from ctvr.orchestrator.sweeps.driver import only_driver
from ctvr.orchestrator.sweeps.session import restore_execution, restore_places


def resume(name: str, execution: ExecutionConfig) -> str:
    """Resume an interrupted sweep or table.

    Raises:
        ConfigError: if it does not exist, or another version wrote its plan.
    """
    check_name(name, "--resume")
    plan, kept = read_plan(execution.folder(name), name)
    execution.check()
    execution = restore_execution(execution, plan, kept)
    with only_driver(execution.folder(name), name), named_in(f"sweep {name}, plan.json"):
        if "table" in kept:
            return table_sweep.resume_table(name, kept, execution)
        return sweep.resume_sweep(name, restore_places(plan, execution), kept, execution)
