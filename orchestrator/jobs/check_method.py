"""Contract checks of a method on noise and a small random backbone, without a stream or Ray (`ctvr methods check`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ctvr import methods
from ctvr.orchestrator.errors import ContractViolation, CtvrError
from ctvr.orchestrator.method_checks import checks, leakage
from ctvr.orchestrator.method_checks.forgetting import check_forgetting
from ctvr.orchestrator.method_checks.opened_files import describe_opened, record_opened
from ctvr.orchestrator.method_checks.setting_sensitivity import check_settings_matter
from ctvr.orchestrator.method_checks.subject import Subject, learn

CHECKS: dict[str, tuple[Callable[[Subject], str | None], str]] = {
    "losses": (checks.check_losses, "losses are finite, and a step changes only the parameters of `param_groups`"),
    "rows": (checks.check_batch_independence, "features of a video or caption do not depend on the rest of a batch"),
    "frozen": (checks.check_frozen, "parameters declared as frozen do not change"),
    "leaks": (
        leakage.check_leakage,
        "evaluation does not use later tasks, the order or the task's index, and does not change the state",
    ),
    "forgetting": (check_forgetting, "an untrained model has no forgetting"),
    "settings": (check_settings_matter, "every numeric setting has an effect"),
    "resume": (checks.check_resume, "a run resumed after every task is bit-identical to an uninterrupted run"),
}
_WIDTH = max(map(len, CHECKS))


def check_method(name: str, settings: Mapping[str, Any] | None = None, presets: Sequence[str] = ()) -> list[str]:
    """Check a method; return one line for each check.

    Args:
        name: name of a method, or `module:Class`.
        settings: settings `method.*` and `base.*`.
        presets: presets of the method.

    Raises:
        ConfigError: for an unknown method or setting.
        CtvrError: if a check fails; the message has all lines.
    """
    torch.set_num_threads(1)
    with record_opened() as opened:
        subject = Subject.of(name, settings, presets)
        with suppress(Exception):  # the checks report it
            learn(subject.make(), 0, steps=2)
    lines, failed = [], 0
    for check, (look, meaning) in CHECKS.items():
        wrong, said = _result(look, subject)
        failed += wrong
        text = f"{meaning} ({said})" if said and not wrong else said or meaning
        lines.append(f"{check:<{_WIDTH}}  {'wrong' if wrong else 'ok':<5}  {text}")
    if (module := methods.place_of(name).partition(":")[0]).partition(".")[0] != "ctvr":
        lines.append(f"{'opens':<{_WIDTH}}  {'':<5}  {describe_opened(module, opened)}, at its import and in two steps")
    if failed:
        raise CtvrError("\n".join([f"methods check {name}: {failed} of {len(CHECKS)} checks failed", *lines]))
    return lines


def _result(look: Callable[[Subject], str | None], subject: Subject) -> tuple[bool, str]:
    """Return whether a check failed, and the check's message. Any exception of the method is a failure."""
    try:
        return False, look(subject) or ""
    except ContractViolation as fault:
        return True, str(fault)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return True, f"{type(error).__name__}: {first} ({_place(error)})"


def _place(error: Exception) -> str:
    """Return file and number of the last line of the method's own code in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = Path(checks.__file__).parent
    own = [f for f in frames if Path(f.filename).parent not in (ours, Path(__file__).parent)]
    libraries = Path(torch.__file__).parent
    chosen = [f for f in own if libraries not in Path(f.filename).parents] or frames
    base = Path(methods.__file__).parent / "base.py"
    last = ([f for f in chosen if Path(f.filename) != base] or chosen)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"
