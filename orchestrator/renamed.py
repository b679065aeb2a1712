"""Old names of settings, values, options, commands and hooks, which are accepted until release 0.4.

Arguments, files, plug-ins and records of earlier runs are translated here before they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError

UNTIL = "0.4"  # the release that no longer reads the old names
SETTINGS: dict[str, str] = {
    "data.load_threads": "data.prefetch_threads",
    "evaluation.chunk": "evaluation.query_chunk",
    "evaluation.losses": "evaluation.log_losses",
    "evaluation.neighbours": "evaluation.knn_k",
    "evaluation.neighbours_share": "evaluation.knn_share",
    "evaluation.patience_from": "evaluation.patience_start",
    "method.buffer": "method.buffer_policy",
    "method.memory": "method.buffer_size",
    "optim.accumulate": "optim.accumulation_steps",
    "optim.across_tasks": "optim.carry_momentum",
    "optim.checkpoint_activations": "optim.activation_checkpointing",
    "optim.decay": "optim.decay_parameters",
    "optim.last_lr": "optim.final_lr",
    "repeatable": "deterministic",
    "search.group": "search.group_size",
    "search.keep": "search.min_survivors",
    "search.reduction": "search.reduction_factor",
    "search.wave": "search.bracket_size",
    "tracking.keep_states": "tracking.keep_checkpoints",
}  # old dotted name -> new one; `method.*` holds for `base.*`, too
_TOME = ("tome", "tome_shared")
REDUCTION: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("keep_cross", "keep_intra", "clip_blocks", "clip_groups", "join_clips", "positions"), ("tempme",)),
    **dict.fromkeys(("keep_rate", "fuse", "anneal_from", "anneal_steps"), ("evit",)),
    **dict.fromkeys(("r_frames", "temporal_rank", "temporal_gate", "one_class"), ("testa",)),
    **dict.fromkeys(("prune_to", "merge_to", "search_macs", "search_step", "lr_rates"), ("diffrate",)),
    "inflection": _TOME,
    "num_frames": ("tempme",),
    "proportional": (*_TOME, "tempme", "diffrate"),
    "r": (*_TOME, "tempme", "sta", "testa"),
    "stages": ("evit", "sta", "testa"),
}  # old `method.X`, which is now `method.reducer.X` -> the reducers that have it; `method.reducer` is `.reducer.name`
REDUCED = {
    *("adapter", "clip4clip", "framefusion_moe", "lora", "prompt", "structalign", "tempme", "umt", "umt_qa"),
    *("diffrate", "evit", "sta", "testa", "tome", "umt4clip"),
}  # methods and configurations to which REDUCTION applies
VALUES: dict[tuple[str, str], str] = {
    ("optim.schedule", "cosine_from_one"): "cosine_offset1",
    ("optim.schedule", "cosine_to_end"): "cosine_to_zero",
    ("optim.schedule", "cosine_whole"): "cosine_uncorrected_warmup",
    ("search.searcher", "staged"): "grouped_tpe",
}  # (new name of the setting, old value) -> new value
OPTIONS: dict[tuple[str, str], str] = {
    ("*", "--orders"): "--task-orders",
    ("*", "--patience"): "--worker-timeout-hours",
    ("look", "--in"): "--inputs",
    ("search", "--in"): "--gallery",
    ("sweep", "--code"): "--expect-sources",
}  # (command, or * for all, old option or OPTION=VALUE) -> new one
COMMANDS: dict[str, str] = {"conform": "check-method", "look": "plot", "page": "report"}
HOOKS: dict[str, str] = {
    "AT_MOST": "UPPER_BOUNDS",
    "BLOCKS": "DEPTHS",
    "DEPARTS": "DEVIATIONS",
    "LATER": "LATER_TASKS",
    "calibrate": "normalize_scores",
    "calibrate_for_videos": "normalize_scores_v2t",
    "diagnostics": "task_metrics",
    "encode_video_of": "encode_video_for_task",
    "monitored": "batch_metrics",
    "own_texts": "encode_own_captions",
    "read_pairs_from": "set_pair_source",
    "remember": "on_gallery_stored",
    "row_wise": "separable_encoders",
}  # old member of Method, or old name in a search space -> new one
CAPABILITIES: dict[str, str] = {
    "accumulates": "accumulation",
    "accumulation": "accumulation",
    "any_tower": "backbone_agnostic",
    "attends_to_padding": "attends_to_padding",
    "backbone_agnostic": "backbone_agnostic",
    "calibrates": "normalizes_scores",
    "compensates_age": "compensates_age",
    "contrasts_batch": "uses_in_batch_negatives",
    "frozen_text": "text_is_frozen",
    "is_task_conditioned": "task_conditioned_text",
    "has_epoch_state": "has_epoch_state",
    "is_transductive": "is_transductive",
    "joins_tasks": "joins_tasks",
    "leaves_out_missing": "masks_missing_frames",
    "masks_missing_frames": "masks_missing_frames",
    "needs_umt": "needs_umt",
    "normalizes_scores": "normalizes_scores",
    "only_frames": "required_num_frames",
    "prompts_by_task": "task_conditioned_text",
    "reads_by_task": "task_conditioned_text",
    "reads_pads": "attends_to_padding",
    "reads_umt": "needs_umt",
    "reencodes_gallery": "reencodes_gallery",
    "required_num_frames": "required_num_frames",
    "rewrites_captions": "rewrites_captions",
    "score_caveat": "score_caveat",
    "several_text_vectors": "several_text_vectors",
    "task_conditioned_text": "task_conditioned_text",
    "text_is_frozen": "text_is_frozen",
    "trains_all": "uses_all_parameters",
    "trains_on": "trains_on",
    "unfinished_score": "score_caveat",
    "uses_all_parameters": "uses_all_parameters",
    "uses_in_batch_negatives": "uses_in_batch_negatives",
}  # old attribute or classmethod of Method -> field of Capabilities, which `capabilities(config)` returns

TAGS = {"ctvr.made_of": "ctvr.provenance"}  # old tag of an MLflow run -> new one

_told: set[tuple[str, str]] = set()


def setting_name(name: str, quiet: bool = False) -> str:
    """Return the current name of a setting, with a notice if `name` is an old one."""
    new = SETTINGS.get(name, name)
    if new == name and name.startswith("base."):
        new = "base." + SETTINGS.get(f"method.{name[5:]}", f"method.{name[5:]}").removeprefix("method.")
    _tell(name, new, quiet)
    return new


def setting_value(name: str, value: Any, quiet: bool = False) -> Any:
    """Translate a value of the setting that is now called `name`; in a list or `a,b`, each value is translated."""
    if not VALUES:
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(setting_value(name, each, quiet) for each in value)
    if not isinstance(value, str):
        return value
    general = f"method.{name[5:]}" if name.startswith("base.") else name
    parts = [(part, VALUES.get((general, part.strip()), part)) for part in value.split(",")]
    for old, new in parts:
        _tell(f"{name}={old.strip()}", f"{name}={new.strip()}", quiet)
    return ",".join(new for _, new in parts)


def settings(given: Mapping[str, Any], quiet: bool = False) -> dict[str, Any]:
    """Return settings under their current names, in the order given.

    Args:
        given: flat dotted settings of the user or a file.
        quiet: print no notices; for a stored record, which the user cannot edit.

    Raises:
        ConfigError: if a setting has different values under its old and its new name.
    """
    found: dict[str, Any] = {}
    for old, value in given.items():
        name = setting_name(old, quiet)
        value = setting_value(name, value, quiet)
        if name in found and found[name] != value:
            raise ConfigError(f"{name}: given twice, as {found[name]!r} and {value!r}, once by its old name. Keep one.")
        found[name] = value
    for group, owner in (("method", found.get("method")), ("base", found.get("method.base", ""))):
        if str(owner) in REDUCED or (group == "base" and not owner):
            found = _regroup(found, group, quiet, {"reducer", *REDUCTION} - ({"num_frames"} if not owner else set()))
    return found


def of_method(given: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return settings without a `method` entry, or the arguments of --space, under their current names."""
    known = settings({**given, "method": given.get("method", method)})
    return {name: value for name, value in known.items() if name != "method" or "method" in given}


def _regroup(given: Mapping[str, Any], group: str, quiet: bool, names: set[str]) -> dict[str, Any]:
    """Move flat settings of token reduction into their group; for a record, drop those that its reducer lacks."""
    reducer = given.get(f"{group}.reducer", given.get(f"{group}.reducer.name"))
    found: dict[str, Any] = {}
    for old, value in given.items():
        of, _, rest = old.partition(".")
        new = old
        if of == group and rest in names:
            new = f"{group}.reducer.{'name' if rest == 'reducer' else rest}"
            if quiet and reducer is not None and rest != "reducer" and reducer not in REDUCTION[rest]:
                continue
        _tell(old, new, quiet)
        if new in found and found[new] != value:
            raise ConfigError(f"{new}: given twice, as {found[new]!r} and {value!r}, once by its old name. Keep one.")
        found[new] = value
    return found


def tags(kept: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a stored run under their current names."""
    return {TAGS.get(name, name): value for name, value in kept.items()}


def record(kept: Any, method: str = "") -> Any:
    """Return a stored record with current names of settings in all its mappings, without notices.

    The settings of a search are stored as `search: {wave: 8}`.

    Args:
        kept: plain JSON values.
        method: method of the mappings that do not name one; by default, that of the enclosing mapping.
    """
    if isinstance(kept, list):
        return [record(each, method) for each in kept]
    if not isinstance(kept, dict):
        return kept
    method = str(kept.get("method", method))
    inner = {name: record(value, method) for name, value in kept.items()}
    found = settings({**inner, "method": inner.get("method", method)}, quiet=True)
    found = found if "method" in kept else {name: value for name, value in found.items() if name != "method"}
    if isinstance(search := found.get("search"), dict):
        whole = settings({f"search.{name}": value for name, value in search.items()}, quiet=True)
        found["search"] = {name.removeprefix("search."): value for name, value in whole.items()}
    return found


def search_space(module: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plug-in's search space with current names of its variables and of the settings in its mappings."""
    found: dict[str, Any] = {}
    for name, value in module.items():
        new = HOOKS.get(name, name)
        _tell(name, new)
        is_space = new.isupper() and isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        found[new] = settings(value) if is_space else value
    return found


def setting_word(word: str, method: str = "") -> str:
    """Translate `name=v1,v2` (an argument of --space) to the current name of the setting of `method`."""
    name, equals, value = word.partition("=")
    if not equals:
        return word
    ((name, value),) = of_method({name.strip(): value}, method).items()
    return f"{name}={value}"


def arguments(words: Sequence[str]) -> list[str]:
    """Return a command line with current names of the command and its options."""
    words = list(words)
    at = next((place for place, word in enumerate(words) if not word.startswith("-")), None)
    if at is None:
        return words
    command = COMMANDS.get(words[at], words[at])
    _tell(words[at], command)
    words[at] = command
    place = at + 1
    while place < len(words) and words[place] != "--":
        words[place : place + 2] = _option(command, words[place : place + 2])
        place += 1
    return words


def _option(command: str, pair: list[str]) -> list[str]:
    """Translate an option and its argument to current names: `--old`, `--old=x`, `--name=old`, `--name old`."""
    option, equals, value = pair[0].partition("=")
    if not option.startswith("--"):
        return pair
    new = _of(command, option)
    _tell(option, new)
    if equals:
        whole = _of(command, f"{new}={value}")
        _tell(f"{new}={value}", whole)
        return [whole, *pair[1:]]
    if len(pair) == 2 and (whole := _of(command, f"{new}={pair[1]}")) != f"{new}={pair[1]}":
        _tell(f"{new}={pair[1]}", whole)
        return [new, whole.partition("=")[2]]
    return [new, *pair[1:]]


def _of(command: str, option: str) -> str:
    return OPTIONS.get((command, option), OPTIONS.get(("*", option), option))


def check_hooks(cls: type) -> None:
    """Refuse a plug-in method that defines a member under its old name, which would never be called.

    A class that also defines the new name works with both releases.

    Raises:
        ConfigError: naming the class, the old member and the line to write.
    """
    for base in cls.__mro__:
        defined = vars(base).keys()
        for old in sorted(defined & HOOKS.keys()):
            if HOOKS[old] not in defined:
                raise ConfigError(
                    f"method {base.__module__}:{base.__qualname__}: defines {old}, which is now {HOOKS[old]}. "
                    "Rename it; docs/new-method.md lists the members."
                )
        if "capabilities" not in defined:
            _refuse_capabilities(base, defined)


def check_attributes(method: object) -> None:
    """Refuse an instance of a plug-in's method that sets a capability as an attribute, which nothing reads.

    A class that defines `capabilities` as well works with both releases.

    Raises:
        ConfigError: naming the class, the attribute and the line to write.
    """
    theirs = [base for base in type(method).__mro__ if not base.__module__.startswith("ctvr.")]
    if not any("capabilities" in vars(base) for base in theirs):
        _refuse_capabilities(type(method), vars(method).keys())


def _refuse_capabilities(cls: type, names: Iterable[str]) -> None:
    for old in sorted({*names} & CAPABILITIES.keys()):
        raise ConfigError(
            f"method {cls.__module__}:{cls.__qualname__}: sets {old}, which nothing reads. Write "
            f"`@classmethod def capabilities(cls, config): return Capabilities({CAPABILITIES[old]}=...)`; "
            "docs/new-method.md shows it."
        )


def _tell(old: str, new: str, quiet: bool = False) -> None:
    """Print a notice, once per process, that an old name was used."""
    if old != new and not quiet and (old, new) not in _told:
        _told.add((old, new))
        say(f"`{old}` is now `{new}`; the old name is accepted until {UNTIL}.")
