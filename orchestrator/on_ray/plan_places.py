"""Addresses and folders in a plan.json, which are used only if this host and user wrote them in this folder."""

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
    """Return the host, the user and the folder that a plan.json written now would record."""
    return {"host": platform.node(), "user": os.getuid(), "folder": str(folder.resolve())}


def own_places(plan: Mapping[str, Any], kept: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Remove addresses and folders from a plan.json that another host, user or folder wrote.

    Folders below the recorded runs folder are replaced by the same folders below the present runs folder, so that a
    copied sweep is resumed in the copy.

    Args:
        plan: the fields of `TrialPlan`, unchecked.
        kept: the other parts of the file, with the address of the cluster in "where".
        folder: folder of the sweep.

    Returns:
        Changed copies of `plan` and `kept`. If values were removed, "foreign" in the second maps each option to the
        removed value, which the user must give again.
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
    """Refuse a plan with removed addresses or folders, unless this command gives them again.

    Args:
        name: name of the sweep.
        kept: other parts of the file, which `read_plan` returned.
        given: option -> its value in this command.

    Raises:
        ConfigError: if an option is missing; the message lists the missing options.
    """
    missing = {option: redact(value) for option, value in kept.get("foreign", {}).items() if not given.get(option)}
    if missing:
        words = " ".join(f"{option} {value}" for option, value in missing.items())
        raise ConfigError(
            f"sweep {name}: its plan.json names {', '.join(missing.values())} and was written on another host, by "
            f"another user or in another folder. To use these values, add {words}; or pass other values."
        )
