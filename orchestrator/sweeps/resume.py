"""`ctvr sweep --resume`: reads what an interrupted sweep or table kept, and hands over to it."""

from __future__ import annotations

from ctvr.orchestrator.config import check_name
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.resolve import named_in
from ctvr.orchestrator.on_ray.plan import read_plan
from ctvr.orchestrator.sweeps import sweep, table_sweep
from ctvr.orchestrator.sweeps.driver import only_driver
from ctvr.orchestrator.sweeps.session import restore_execution


def resume(name: str, execution: ExecutionConfig) -> str:
    """Go on with an interrupted sweep or table.

    Raises:
        ConfigError: if there is none of that name, or another version kept it.
    """
    check_name(name, "--resume")
    plan, kept = read_plan(execution.folder(name), name)
    execution.check()
    execution = restore_execution(execution, plan, kept)
    with only_driver(execution.folder(name), name), named_in(f"sweep {name}, plan.json"):
        if "table" in kept:
            return table_sweep.go_on(name, kept, execution)
        return sweep.resume_sweep(name, plan, kept, execution)
