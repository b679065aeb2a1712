"""Explanation of a store key, and comparison of two keys (`ctvr runs explain`).

A key is a digest and cannot be inverted. MLflow records its inputs (tag `ctvr.result` = key, params = settings, tag
`ctvr.stream_digest`). The key is computed from them again to check whether a run today would get the same key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.console import printable
from ctvr.orchestrator.errors import ConfigError, MissingObject
from ctvr.orchestrator.jobs.runs import what_it_names
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.metric_names import ACCURACY, ANSWERED
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.tables.setting_diff import provenance_of, run_preprocessing
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

RESULT = "ctvr.result"
PARTS = "settings, stream, frames, backbone weights, code, versions of torch and open_clip, device"
WIDTH = 12  # characters of the left column
SHOWN = 5  # maximum number of listed runs or keys


def explain(key_prefix: str, store: Store, tracker: Tracker | None = None) -> str:
    """Describe the inputs of a key and the objects stored under it.

    Args:
        key_prefix: unique prefix of a result's key (64 hex digits; `zero-...` for a zero-shot curve) or of the key of
            a video's frames.
        store: the store of finished tasks and frames.
        tracker: the records of runs; if None, only the store is read.

    Raises:
        ConfigError: if no key, or several keys, have the prefix.
    """
    prefix = _parse_prefix(_key_of(key_prefix, tracker))
    keys = _result_keys(prefix, store, tracker)
    if not keys:
        frames = store.list("frames", prefix)
        if frames:
            return _frames_text(_require_single(prefix, frames), store)
    key = _require_single(prefix, keys)
    runs = _runs_of(key, tracker)
    lines = [f"result {key}", f"{'made of':<{WIDTH}}{PARTS}"]
    if runs:
        lines += _content(key, runs)
    else:
        lines.append(f"{'settings':<{WIDTH}}{_why_unknown(key, tracker)}")
    return "\n".join(map(printable, [*lines, *_tasks(key, store)]))


def compare(key_a: str, key_b: str, store: Store, tracker: Tracker) -> str:
    """List the differing inputs of two results' keys: settings, stream, frames, weights, code, versions or device.

    Raises:
        ConfigError: if a key is unknown, or no run in MLflow records its settings.
    """
    pair = []
    for prefix in (_parse_prefix(_key_of(key, tracker)) for key in (key_a, key_b)):
        key = _require_single(prefix, _result_keys(prefix, store, tracker))
        runs = _runs_of(key, tracker)
        if not runs:
            raise ConfigError(_why_unknown(key, tracker), f"key {key[:16]}", remedy="Compare keys of tracked runs.")
        pair.append((key, runs[0]))
    (key, first), (other, second) = pair
    if key == other:
        return f"both are {key}"
    decisive, idle = _differences(first.settings, second.settings)
    lines = [f"a           {key}", f"b           {other}", *decisive]
    parts = _differing_parts(provenance_of(first), provenance_of(second))
    lines += parts
    if not decisive and not parts:
        lines.append("settings and stream are the same: the code or the backbone's weights have changed")
    commits = [run.tags.get("ctvr.commit", "unknown")[:12] for run in (first, second)]
    if commits[0] != commits[1]:
        lines.append(f"commit      a: {commits[0]}  b: {commits[1]}")
    if idle:
        lines.append(f"not in the key, but different: {', '.join(idle)}")
    return "\n".join(map(printable, lines))


# ------------------------------------------------------------------------------------------ finding keys


def _key_of(name: str, tracker: Tracker | None) -> str:
    """Return the key of a run (by name or ID) or of a method's newest run; otherwise `name`, which may be a key.

    Raises:
        ConfigError: if `name` is neither a run nor a method with runs, and cannot be a key.
    """
    runs = [] if tracker is None else tracker.find_runs()
    found = [run for run in runs if run.name == name or (len(name) >= 6 and run.run_id.startswith(name.lower()))]
    if not found:
        found = [run for run in runs if run.tags.get("ctvr.method") == name and RESULT in run.tags][-1:]
    keys = {run.tags[RESULT] for run in found if RESULT in run.tags}
    if len(keys) == 1:
        return keys.pop()
    is_key = re.fullmatch(r"(?:zero-)?[0-9a-fA-F]{4,64}(?:-[0-9a-f]{1,8})?(?:/.*)?", name.strip())
    if found or is_key or not runs:
        return name
    raise ConfigError(f"no run or key {name!r}.{what_it_names(name, runs)}", "runs explain")


def _parse_prefix(prefix: str) -> str:
    """Return the part of a key that identifies a result, in lower case.

    Raises:
        ConfigError: if the text is not a key.
    """
    text = prefix.strip().lower().partition("/")[0]
    if not re.fullmatch(r"(?:zero-)?[0-9a-f]{4,64}(?:-[0-9a-f]{1,8})?", text):
        raise ConfigError(
            f"key {prefix!r}: is not a key. Use 4 or more hexadecimal digits of MLflow's tag {RESULT}, or of a name "
            "below `commits` or `frames` in the store."
        )
    return text


def _result_keys(prefix: str, store: Store, tracker: Tracker | None) -> list[str]:
    """Return the keys with a prefix, of finished tasks in the store and of runs in MLflow without a finished task."""
    keys = {name.partition("/")[0] for name in store.list("commits", prefix)}
    if not keys and tracker is not None:
        if len(prefix) == 64:
            found = tracker.find_runs(tags={RESULT: prefix})
        else:
            found = tracker.find_runs()
        keys = {run.tags[RESULT] for run in found if run.tags.get(RESULT, "").startswith(prefix)}
    return sorted(keys)


def _require_single(prefix: str, keys: Sequence[str]) -> str:
    if prefix in keys:
        return prefix
    if not keys:
        raise ConfigError(
            f"key {prefix!r}: no key in the store or in MLflow has this prefix. MLflow's tag {RESULT} is a run's key. "
            "Pass the --store and --runs of that run."
        )
    if len(keys) > 1:
        some = ", ".join(key[:16] for key in keys[:SHOWN])
        raise ConfigError(f"key {prefix!r}: {len(keys)} keys have this prefix ({some}, ...). Use more characters.")
    return keys[0]


def _runs_of(key: str, tracker: Tracker | None) -> list[RunRecord]:
    """Return the runs with this key, oldest first. The store, unlike MLflow, adds a suffix to the key of `--fresh`."""
    if tracker is None or key.startswith("zero-"):
        return []
    return tracker.find_runs(tags={RESULT: key.partition("-")[0]})


def _why_unknown(key: str, tracker: Tracker | None) -> str:
    if key.startswith("zero-"):
        return "settings of the untrained backbone (method zero_shot), which no separate run records"
    if tracker is None:
        return "unknown without MLflow"
    return "not recorded by any run in MLflow"


# ---------------------------------------------------------------------------------------------- text


def _content(key: str, runs: Sequence[RunRecord]) -> list[str]:
    run = runs[0]
    tags = run.tags
    named = ", ".join(f"{r.name} ({r.run_id[:8]}, {r.status.lower()})" for r in runs[:SHOWN])
    more = f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
    settings, idle = _split(run.settings)
    lines = [
        f"{'runs':<{WIDTH}}{named}{more}",
        f"{'sweep':<{WIDTH}}{tags.get('ctvr.sweep') or 'none'}",
        f"{'stream':<{WIDTH}}{tags.get('ctvr.stream', '?')}, digest {tags.get('ctvr.stream_digest', 'unknown')}",
        f"{'commit':<{WIDTH}}{tags.get('ctvr.commit', 'unknown')}",
        *(f"{name:<{WIDTH - 1}} {words}" for name, words in run_preprocessing(run).items()),
        f"{'today':<{WIDTH}}{_today(key, run)}",
        "settings",
        *(f"  {name} = {value}" for name, value in sorted(settings.items())),
    ]
    if idle:
        lines.append(f"not in the key: {', '.join(f'{name}={value}' for name, value in sorted(idle.items()))}")
    return lines


def _split(settings: Mapping[str, Any]) -> tuple[Settings, Settings]:
    """Split settings into settings that are part of a key, and settings that do not affect results."""
    from ctvr.orchestrator.keys.run_key import NON_IDENTITY_SETTINGS  # torch takes seconds to import

    idle = {name: value for name, value in settings.items() if name in NON_IDENTITY_SETTINGS}
    return {name: value for name, value in settings.items() if name not in idle}, idle


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return one line for each differing setting of the key, and the names of other differing settings."""
    names = [name for name in sorted({*first, *second}) if first.get(name, "-") != second.get(name, "-")]
    decisive, idle = _split(dict.fromkeys(names))
    lines = [f"{name:<{WIDTH}} a: {first.get(name, '-')}  b: {second.get(name, '-')}" for name in decisive]
    return lines, list(idle)


def _differing_parts(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return one line for each differing input of two keys; empty if the inputs of one key are not recorded."""
    why = {"stream": " (other videos, captions or order)"}
    names = {**first, **second} if first and second else {}
    return [
        f"{name:<{WIDTH - 1}} a: {_short(first.get(name))}  b: {_short(second.get(name))}{why.get(name, '')}"
        for name in names
        if first.get(name) != second.get(name)
    ]


def _short(value: str | None) -> str:
    """Shorten a digest; return other text unchanged."""
    return "none" if value is None else value if " " in value else value[:16]


def _today(key: str, run: RunRecord) -> str:
    """State whether the run's settings and stream have the same key with the current code, weights and versions."""
    from ctvr.orchestrator.keys.run_key import OF_PROTOCOL  # torch takes seconds to import
    from ctvr.orchestrator.sweeps.comparison import experiment_of

    digest = run.tags.get("ctvr.stream_digest")
    if not digest:
        return "unknown: the run has no ctvr.stream_digest"
    try:
        experiment = experiment_of(run)
        then = provenance_of(run)
        others = [name.removeprefix(OF_PROTOCOL) for name in then if name.startswith(OF_PROTOCOL)]
        stream = cast(Stream, SimpleNamespace(digest=digest, protocol=others[0] if others else "ctvr"))
        about = (stream, run.tags.get("ctvr.frames", ""), then.get("device", "cpu"))
        now = experiment.key(*about)
    except (ConfigError, OSError) as error:
        return f"this version cannot compute it: {error}"
    if now == key.partition("-")[0]:
        return "the code, the weights and the environment here give the same key"
    here = experiment.environment_digests(*about) | experiment.file_digests()
    changed = [line.partition(" a: ")[0].strip() for line in _differing_parts(then, here)]
    what = ", ".join(changed) or "code, weights or environment"
    return f"{what} here differ, so that a run now has the key {now[:16]}"


def _tasks(key: str, store: Store) -> list[str]:
    names = [name for name in store.list("commits", f"{key}/") if re.search(r"/task_\d+$", name)]
    if not names:
        return [f"{'tasks':<{WIDTH}}none is finished in {store.uri}"]
    lines = [f"{'tasks':<{WIDTH}}{len(names)} finished in {store.uri}"]
    known: set[str] = set()
    for name in names:
        try:
            commit = store.get_json("commits", name)
        except MissingObject:
            lines.append(f"  {name.partition('/')[2]}  damaged; the task will be trained again")
            continue
        lines.append(f"  {name.partition('/')[2]}  {_task_text(commit, store, name == names[-1])}")
        reads = set(commit.get("reads", ()))
        if known and reads - known:
            lines.append(f"    settings read for the first time: {', '.join(sorted(reads - known))}")
        known |= reads
    return lines


def _task_text(commit: Mapping[str, Any], store: Store, is_newest: bool) -> str:
    record = commit["record"]
    metrics = record["metrics"][-1] if record["metrics"] else {}
    words = [f"{record['seconds'][-1]:.1f} s"] if record.get("seconds") else []
    words.append(f"{record.get('steps', 0)} steps so far")
    if commit.get("reused") and commit["reused"] == record["done"]:
        words.append(f"adopted from run {commit['weights'].partition('/')[0][:16]}")
    for name, word in (("stream/t2v/r1", "R@1"), (ACCURACY, "accuracy"), (ANSWERED, "accuracy")):
        if name in metrics:
            words.append(f"{word} {metrics[name]:.2f}")
    from ctvr.orchestrator.learning.record.commits import objects_of  # torch takes seconds to import

    gone = [f"{kind}/{name}" for kind, name in objects_of(commit) if not store.has(kind, name)]
    if gone and not is_newest and all(each.startswith("weights/") for each in gone):
        words.append("its weights were not kept")  # a run needs only the weights of its last two tasks; see `Commits`
    elif gone:
        words.append(f"{len(gone)} of its objects {'is' if len(gone) == 1 else 'are'} missing, so it is trained again")
    return ", ".join(words)


def _frames_text(key: str, store: Store) -> str:
    try:
        arrays = store.get("frames", key)
    except MissingObject:
        return f"frames {key}\nwere damaged and have been removed; they will be decoded again"
    is_jpeg = "jpeg" in arrays
    count, height, width = (arrays["shape"] if is_jpeg else arrays["frames"].shape)[:3]
    stored = arrays["jpeg" if is_jpeg else "frames"].nbytes
    return "\n".join(
        [
            f"frames {key}",
            f"{'made of':<{WIDTH}}digest of the file, segment, number and size of frames, decoder version",
            f"{'video':<{WIDTH}}{arrays.meta.get('video', 'unknown')}",
            f"{'decoder':<{WIDTH}}{arrays.meta.get('decoder', 'unknown')}",
            f"{'frames':<{WIDTH}}{count} of {height} x {width}, {stored} bytes{' as JPEG' * is_jpeg}",
        ]
    )
