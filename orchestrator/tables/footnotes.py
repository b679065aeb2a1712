"""Footnotes of rows: caveats that follow from the tags and settings of their runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ctvr.methods import EVERY_METHOD, IMAGE_METHODS, find_method
from ctvr.methods.recipes import EMBEDDED, trials_by_hand
from ctvr.orchestrator.config import build, select_prefix
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.setting_groups import known_settings
from ctvr.orchestrator.tables.unpublished_settings import departures, footnote
from ctvr.orchestrator.tracking.run_record import is_count

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord

EPOCHS = "ctvr.recommended_epochs"  # tag of a run that trains: epochs per task that stream and recipe recommend
CHOICE = "ctvr.choice"  # tag of a rerun: whether its settings are `searched`, `recommended` or `front, TRIAL`
NOTES = " | "  # separator of footnotes in the tag ctvr.note
IDLE = 1e-6  # a penalty up to this value cannot have changed a map, whose loss of squared distances is about 0.01 to 1
TEXTS = {
    "best_test": "keeps the epoch of each task that scores best on the test videos (best-on-test)",
    "best_val": "keeps the epoch of each task that scores best on the validation videos",
    "trains_on_test": "trains on the stored features of unlabeled test videos of earlier tasks",
    "trains_on_val": "trains on the stored features of unlabeled validation videos of earlier tasks",
    "val": "measured on validation videos",
    "transductive": "transductive scoring: a query's result depends on the other queries of the test set",
    "replay": "updates its replay buffer only at the end of each task, and repeats stored pairs if a step samples "
    "more pairs than the buffer has (released codes update it after every step and repeat no pair)",
    "short": "epochs per task: {epochs} (recommended: {recommended})",
    "untrained": "untrained model (preset untrained), evaluated by the method's own score",
    "penalty": "the penalty on its map W had no effect (at most {penalty:.1e} after any task, with |W W' - I| at most "
    "{gap:.2f}), so the map is an unconstrained affine map",
    "searched": "settings of the best of {n} trials{rule}",
    "equal": "settings of the first of {n} trials, which all have equal results{rule}, so the search has no winner",
    "front": "settings on the Pareto front of {n} trials{rule}",
}
# method -> its setting -> the published rate
FLOAT16: Mapping[str, Mapping[str, float]] = {
    "clip4clip": {"lr": 1e-7},
    "camoe": {"lr": 1e-7},
    "mv_adapter": {"lr": 5e-6, "lr_bias": 1e-7},
}
TEXT = "{settings}: published for float16 weights; at this rate, float32 weights change far less (docs/protocol.md)"


def marks_of(run: RunRecord) -> list[str]:
    """Return the footnotes of the row of a run: its caveats."""
    tags, marks = run.tags, []
    split = str(run.settings.get("evaluation.split", tags.get("ctvr.split", "test")))
    if str(run.settings.get("evaluation.select", tags.get("ctvr.select", "last"))).startswith("best"):
        marks.append(TEXTS[f"best_{tags.get('ctvr.select_split') or split}"])  # old records lack the tag
    if has_access(run, "trains_on_searched"):
        marks.append(TEXTS[f"trains_on_{split}"])
    if short := _short_of_epochs(run):
        marks.append(short)
    if idle := _idle_penalty(run):
        marks.append(idle)
    if split == "val":
        marks.append(TEXTS["val"])
    if tags.get("ctvr.mark"):
        marks.append(tags["ctvr.mark"])
    if tags.get("ctvr.transductive") == "true":
        marks.append(TEXTS["transductive"])
    # The replay buffer of an image method is updated as in the released code
    if "method.buffer_size" in run.settings and method_of(run) not in IMAGE_METHODS and has_access(run, "keeps_videos"):
        marks.append(TEXTS["replay"])
    if tags.get("ctvr.note"):
        marks += tags["ctvr.note"].split(NOTES)
    if trials := trials_of(run):
        rule = f" by {tags['ctvr.selection']}" if tags.get("ctvr.selection") else ""
        found = "front" if tags.get(CHOICE, "").startswith("front") else "searched"
        found = "equal" if tags.get("ctvr.no_winner") == "true" else found
        marks.append(TEXTS[found].format(n=trials, rule=rule))
    if ours := footnote(run.settings, method_of(run)):
        marks.append(ours)
    if theirs := departures(run.settings, method_of(run)):
        marks.append(theirs)
    if half := float16_note(run.settings):
        marks.append(half)
    return marks


def access_of(run: RunRecord) -> str:
    """Return the key in `table.ACCESS` of the data that training reads in addition to pairs of the current task."""
    if has_access(run, "is_joint"):
        return "joint"
    words = {"keeps_videos": "videos", "trains_on_searched": "searched"}
    return "+".join(word for fact, word in words.items() if has_access(run, fact))


def has_access(run: RunRecord, fact: str) -> bool:
    """Return the value of `fact` for a run: `is_joint`, `keeps_videos` or `trains_on_searched` of `Experiment`.

    Runs record these values in tags. For older records of built-in methods, they follow from the settings.
    """
    if said := run.tags.get(f"ctvr.{fact}"):
        return said == "true"
    method, base = str(run.settings.get("method", "")), str(run.settings.get("method.base", ""))
    if method not in EVERY_METHOD or str(run.settings.get("optim.epochs", "")) == "0":
        return False
    return _has_access(run, fact, "method", method, base in EVERY_METHOD and _has_access(run, fact, "base", base))


def _has_access(run: RunRecord, fact: str, group: str, name: str, of_base: bool = False) -> bool:
    """Return whether `fact` is true of method `name` with the settings of `group`, or with its defaults.

    The defaults are used if the settings are not valid in this version. `of_base` is the value of `fact` for the base
    method.
    """
    cls = find_method(name)
    config: Any = cls.Config()
    with suppress(ConfigError):
        config = build(cls.Config, known_settings(cls.Config, select_prefix(run.settings, group)), group)
    if fact == "is_joint":
        return of_base or cls.capabilities(config).trains_on == "seen"
    return bool(getattr(cls, fact)(config, of_base))


def uses_untrained_preset(run: RunRecord) -> bool:
    """Return whether the run used the preset `untrained`, which sets the epochs to 0 although the method can train."""
    return str(run.settings.get("optim.epochs", "")) == run.tags.get(EPOCHS, "") == "0"


def _short_of_epochs(run: RunRecord) -> str:
    """Return the footnote of an untrained run, or of a run with fewer epochs than recommended. Otherwise return ""."""
    if uses_untrained_preset(run):
        return TEXTS["untrained"]
    epochs, recommended = str(run.settings.get("optim.epochs", "")), run.tags.get(EPOCHS, "")
    if not (is_count(epochs) and is_count(recommended) and int(epochs) < int(recommended)):
        return ""
    return TEXTS["short"].format(epochs=epochs, recommended=recommended)


def _idle_penalty(run: RunRecord) -> str:
    """Return the footnote of a run whose penalty on maps was at most `IDLE` after every task. Otherwise return ""."""
    values = {
        name: [value for _, value in run.metrics.get(f"task/orthogonality_{name}", [])] for name in ("penalty", "gap")
    }
    if not all(values.values()) or max(values["penalty"]) > IDLE:
        return ""
    return TEXTS["penalty"].format(**{name: max(found) for name, found in values.items()})


def trials_of(run: RunRecord) -> int | None:
    """Return the number of search trials for the row of a run (0: not searched), or None if it is not recorded."""
    method, _, trials = run.tags.get("ctvr.searched", "").rpartition(":")  # a method may be module:Class
    if not is_count(trials):
        return None
    return int(trials) if method == method_of(run) else 0


def by_hand(run: RunRecord) -> str:
    """Return, as text, the number of trials by hand for the recipe `EMBEDDED`; "" if the run does not use it."""
    if EMBEDDED not in run.tags.get("ctvr.presets", "").split(","):
        return ""
    names = [str(run.settings.get(name, "")) for name in ("method", "method.base")]
    return trials_by_hand([find_method(name).PRESETS.get(EMBEDDED) for name in names if name in EVERY_METHOD])


def method_of(run: RunRecord) -> str:
    return run.tags.get("ctvr.method") or str(run.settings.get("method", run.name))  # the tag names configurations


def float16_note(settings: Mapping[str, Any]) -> str:
    """Return the footnote of a run with these flat settings, or "" if no setting has a learning rate in `FLOAT16`."""
    found = []
    for group, method in (("method", settings.get("method")), ("base", settings.get("method.base"))):
        for name, rate in FLOAT16.get(str(method), {}).items():
            try:
                if float(settings.get(f"{group}.{name}", 0)) == rate:
                    found.append(f"{group}.{name}={rate:g}")
            except (TypeError, ValueError):  # a record of an older version
                continue
    return TEXT.format(settings=", ".join(found)) if found else ""
