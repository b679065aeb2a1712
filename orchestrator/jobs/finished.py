"""Fast lookup of a finished run by its command, without the slow imports of torch and MLflow."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, named_classes
from ctvr.methods.backbone.own_architecture import is_own
from ctvr.methods.plug_ins import every_plug_in
from ctvr.orchestrator import memo
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.console import say
from ctvr.orchestrator.digests import identity_of, is_settled
from ctvr.orchestrator.errors import CtvrError
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.interpreter import kernels
from ctvr.orchestrator.jobs.run_text import next_text, result_text
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.output_dir import runs_option
from ctvr.orchestrator.streams.stream import PROTOCOLS, Stream, iter_items
from ctvr.orchestrator.sweeps.trust import trust_text

FINISHED = "all tasks were already finished; nothing was trained (--fresh trains again)"


def finished_run(settings: Settings, presets: Sequence[str], execution: ExecutionConfig) -> str | None:
    """Return the results of a finished run as text; None if the run is not finished, or if its key is not cached.

    Args:
        settings: settings by dotted name, including `method` and `stream`.
        presets: names of presets; later presets override earlier ones.
        execution: runs folder, store and videos.

    Raises:
        ConfigError: for a stream that cannot be used.
    """
    settings = {**settings, "stream": find_manifest(str(settings["stream"]))}
    stream = execution.load_stream(settings["stream"], render=False)
    try:
        question = question_of(settings, presets, stream)
        key = memo.recall(question) if question else None
        if not key:
            return None
        commits, num_tasks = Commits(execution.existing_store(), key), len(stream.tasks)
        if commits.finished(num_tasks) < num_tasks:
            return None
        found = execution.existing_tracker().find_runs(
            stream.name, tags={"ctvr.result": key, "ctvr.commits": key, "ctvr.complete": "true"}
        )
    except (CtvrError, OSError):  # the complete run will report the error
        return None
    if not found:
        return None
    say(FINISHED)
    run, record = found[-1], commits.record(num_tasks)
    text = result_text(run.settings["method"], run.tags["ctvr.split"], stream, record.metrics[-1])
    return f"{text}\n{next_text(stream, record.ranks, run.run_id, f'{runs_option(execution.runs)}{trust_text()}')}"


def question_of(
    settings: Settings, presets: Sequence[str], stream: Stream, is_verified: bool = False
) -> list[Any] | None:
    """Return the values that, besides sources and libraries, determine a run's key; None if the key is not cacheable.

    Files are compared by size and times. Keys of runs with code of other packages are not cached.

    Args:
        settings: settings by dotted name.
        presets: names of presets.
        stream: the stream of the run.
        is_verified: whether this process has just rendered or verified the stream's videos, so that new videos also
            count.
    """
    values = [value for given in (settings, stream.settings) for name, value in given.items() if name != "stream"]
    methods = {str(given[name]) for given in (settings, stream.settings) for name in METHODS if name in given}
    if named_classes(values) or not methods <= {*EVERY_METHOD, *CONFIGURATIONS} or stream.protocol not in PROTOCOLS:
        return None
    named = {word for value in values for word in re.split(r"[^\w.-]+", str(value))} | {stream.name}
    if any(point.name in named for point in every_plug_in()):
        return None
    if any(is_own(str(settings.get(name, ""))) for name in BACKBONES):
        return None
    if any(given.get(name) for given in (settings, stream.settings) for name in OTHER_STREAMS):
        return None
    texts = (os.path.expanduser(value) for value in values if isinstance(value, str))
    videos = dict.fromkeys(item.path for _, _, item in iter_items(stream))
    paths = [*videos, *(path for text in texts if os.path.exists(text) for path in _with_neighbors(text))]
    files = []
    for path in dict.fromkeys([*paths, *filter(None, [stream.text_features])]):
        try:
            status = os.stat(path)
        except OSError:
            return None
        is_old = is_settled(identity_of(status)) or (is_verified and path in videos)
        if not stat.S_ISREG(status.st_mode) or not is_old:
            return None
        files.append([path, *identity_of(status)])
    of_stream = [stream.digest, stream.settings, stream.protocol, stream.has_val]
    given = {name: value for name, value in settings.items() if name != "stream"}
    return ["key of a run", given, list(presets), of_stream, files, _machine()]


def _with_neighbors(path: str) -> list[str]:
    """Return a path and the files in its folder, because shards and preprocessing settings are next to weights."""
    with os.scandir(os.path.dirname(path) or ".") as found:
        return [path, *sorted(each.path for each in found if each.is_file())]


METHODS = ("method", "method.base")
BACKBONES = ("backbone.name", "upgrade.backbone")  # a path has a tokenizer that the path does not name
OTHER_STREAMS = ("evaluation.also", "evaluation.distractors", "upgrade.stream")  # not among the stream's files


def _machine() -> list[Any]:
    """Return the properties of this machine that determine the device and the vector instructions that torch uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    instructions = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    named = [kernels(), os.environ.get("CUDA_VISIBLE_DEVICES", "")]
    return [instructions, named, sorted(path.name for path in Path("/dev").glob("nvidia*"))]
