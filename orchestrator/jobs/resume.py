"""`ctvr sweep --resume`: reads what an interrupted sweep or table kept, and hands over to it."""

from __future__ import annotations

from orchestrator.config import check_name
from orchestrator.jobs import sweep, sweep_table
from orchestrator.jobs.deployment import Deployment
from orchestrator.jobs.driver import only_driver
from orchestrator.jobs.session import kept_where
from orchestrator.learning.resolve import named_in
from orchestrator.on_ray.plan import read_plan


def resume(name: str, where: Deployment) -> str:
    """Go on with an interrupted sweep or table.

    Raises:
        ConfigError: if there is none of that name, or another version kept it.
    """
    check_name(name, "--resume")
    plan, kept = read_plan(where.folder(name), name)
    where.check()
    where = kept_where(where, plan, kept)
    with only_driver(where.folder(name), name), named_in(f"sweep {name}, plan.json"):
        if "table" in kept:
            return sweep_table.go_on(name, kept, where)
        return sweep.go_on(name, plan, kept, where)
