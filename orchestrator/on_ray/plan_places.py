"""Places (hosts, folders) in a plan.json: they count only for the host, the user and the folder that wrote them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctvr.orchestrator.addresses import is_allowed
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.redaction import redact

_OWN = ("auto", "local")  # addresses of a cluster of this machine
OPTIONS = {"address": "--address", "store": "--store", "storage": "--storage", "videos": "--videos"}


def writer_of(folder: Path) -> dict[str, Any]:
    """Return the host, the user and the folder of a sweep that this process would write."""
    return {"host": platform.node(), "user": os.getuid(), "folder": str(folder.resolve())}


def own_places(plan: Mapping[str, Any], kept: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the places out of a plan.json that another host, user or folder wrote.

    Places below the runs folder move to the present one, so a copied folder is resumed in its own.

    Args:
        plan: the fields of `TrialPlan`, unchecked.
        kept: the other parts of the file, with the address of the cluster in "where".
        folder: of the sweep.

    Returns:
        Both, and in the second "foreign": option -> the value that was taken out and must be given again.
    """
    plan, kept, runs = dict(plan), dict(kept), folder.resolve().parent.parent
    is_own, root = kept.pop("writer", None) == writer_of(folder), str(plan.get("root") or "")
    foreign: dict[str, str] = {}
    for name, option in OPTIONS.items():
        holder = kept.get("where", {}) if name == "address" else plan
        value = holder.get(name)
        if not value or not isinstance(value, str) or (name == "address" and value in _OWN):
            continue
        if name != "address" and root and Path(value).is_relative_to(root):
            value = holder[name] = str(runs / Path(value).relative_to(root))
        if not is_own and not is_allowed(value, runs):
            foreign[option] = value
            holder[name] = {"store": "", "storage": str(folder.resolve())}.get(name)
    kept["foreign"] = foreign
    return plan, {name: part for name, part in kept.items() if part or name != "foreign"}


def require_given(name: str, kept: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a plan from elsewhere whose places this command does not give again.

    Args:
        name: of the sweep.
        kept: read by `read_plan`.
        given: option -> its value in this command.

    Raises:
        ConfigError: one line with the options.
    """
    missing = {option: redact(value) for option, value in kept.get("foreign", {}).items() if not given.get(option)}
    if missing:
        words = " ".join(f"{option} {value}" for option, value in missing.items())
        raise ConfigError(
            f"sweep {name}: its plan.json names {', '.join(missing.values())} and was written on another host, by "
            f"another user or in another folder. To use the same, add {words}; or give others."
        )
