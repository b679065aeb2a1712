"""The functions of `ctvr`. Each does the same as the command of its name, but returns objects instead of text.

Tables are pandas data frames if pandas is installed, otherwise lists of dictionaries.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ctvr.orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from ctvr.orchestrator.execution import ExecutionConfig
    from ctvr.orchestrator.retrieval.model import Model
    from ctvr.orchestrator.streams.stream import Stream

Words = str | Sequence[str]
Place = str | Path


@dataclass(frozen=True)
class Run:
    """A complete run. Percentages; T tasks."""

    run_id: str  # MLflow's run id
    method: str
    stream: str
    settings: dict[str, Any]  # every setting, flat and dotted
    metrics: dict[str, float]  # after the last task, as in MLflow
    own: list[list[float]]  # R@1 of task i among its own videos after task t: own[t][i], i <= t
    union: list[list[float]]  # the same among all stored videos
    ranks: dict[str, float]  # query "<video>#<number of the caption>" -> rank, 1 = found first; a tie counts half
    history: list[dict[str, float]]  # metrics after each task
    execution: ExecutionConfig

    def frame(self) -> Any:
        """Return a row for each task learned, a column for each metric."""
        return _frame([{"task": number, **row} for number, row in enumerate(self.history, 1)])

    def model(self) -> Model:
        """Load the trained model of this run; it answers text queries."""
        from ctvr.orchestrator.jobs.load_model import load as find

        return find(self.run_id, self.execution)


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. `text` is the command's output: the winner, its confirmation, the table."""

    name: str
    text: str
    execution: ExecutionConfig

    def trials(self) -> Any:
        """Return a row for each complete trial, best first: settings, R@1, the metrics of the search, run id."""
        from ctvr.orchestrator.sweeps.selection import best_trials, selection_metric

        sweep = self.execution.tracker().find_sweep(self.name)
        metrics = selection_metric(sweep)[0].replace(" ", "").split(",") if sweep else []
        rows = []
        for run in best_trials(self.execution.tracker(), self.name, None):
            values = {key: last[1] for key in (*metrics, "stream/t2v/r1") if (last := run.last(key))}
            rows.append({"run_id": run.run_id, "name": run.name, **values, **run.settings})
        return _frame(rows)

    def model(self) -> Model:
        """Return the model of the best trial, which has seed 0 and was selected on validation videos.

        With several objectives, it is the trial of the Pareto front with the best first objective.
        """
        from ctvr.orchestrator.jobs.load_model import load as find

        return find(self.name, self.execution)


def run(
    method: str,
    stream: str | Path = "shapes-5",
    *,
    settings: Mapping[str, Any] | None = None,
    preset: Words = (),
    config: Place | None = None,
    runs: Place = "runs",
    store: str = "",
    videos: Place | None = None,
    fresh: bool = False,
    keep_model: bool = False,
    trust: Words = (),
) -> Run:
    """Train one method over one stream in this process (`ctvr run`); finished tasks are not trained again.

    Args:
        method: a name of `ctvr.list_methods()`.
        stream: a name of `ctvr.list_streams()`, or a manifest file.
        settings: flat and dotted, such as `{"optim.epochs": 8, "method.beta": 0.4}`.
        preset: name of a preset, which may be combined with changes.
        config: a YAML file of settings; `settings` take precedence.
        runs: folder of all output.
        store: object store of frames and commits; default: below `runs`.
        videos: folder of the videos; default: the folder that the manifest names.
        fresh: also train finished tasks again.
        keep_model: upload the trained model to MLflow.
        trust: classes `module:Class` to load, and addresses to use, although only the stream names them.

    Raises:
        ConfigError: for invalid arguments, before anything is trained.
    """
    from ctvr.orchestrator.jobs.run import train
    from ctvr.orchestrator.sweeps.settings_file import read_settings

    given = {**(read_settings(Path(config)) if config else {}), **(settings or {})}
    _trust([method, *given.values()], trust)
    chosen = preset or given.pop("preset", ())
    given = {**{k: v for k, v in given.items() if k != "preset"}, "method": method, "stream": str(stream)}
    execution = _execution(runs, store, videos)
    done = train(given, _words(chosen), execution, fresh, keep_model)
    record = done.record
    return Run(
        done.run_id,
        done.experiment.name,
        done.stream.name,
        dict(done.experiment.settings),
        dict(record.metrics[-1]),
        record.own,
        record.union,
        {query: rank.mean for query, rank in record.ranks.items()},
        [dict(row) for row in record.metrics],
        execution,
    )


def sweep(
    method: str | None = None,
    stream: str | Path | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    preset: Words = (),
    config: Place | None = None,
    runs: Place = "runs",
    store: str = "",
    videos: Place | None = None,
    name: str | None = None,
    space: Mapping[str, Sequence[Any]] | None = None,
    space_add: Mapping[str, Sequence[Any]] | None = None,
    baselines: Words | None = None,
    trust: Words = (),
    **options: Any,
) -> Sweep:
    """Search a method's settings on Ray, rerun the best over seeds, tabulate (`ctvr sweep`).

    Args:
        method, stream, settings, preset, config, runs, store, videos: as in `run`; `preset` may name a whole table.
        name: the name of the sweep.
        space: setting -> the values to search; all other settings have their recommended values.
        space_add: setting -> values to search together with the method's own search space.
        baselines: methods to compare with the winner.
        trust: classes `module:Class` to load, and addresses to use, although only a stream, table or plan names them.
        options: every other option of `ctvr sweep --help`, with _ for -: `trials=8, seeds=3, confirm=2, smoke=True`.

    Raises:
        ConfigError: for invalid arguments, before anything is trained.
    """
    import time

    from ctvr.orchestrator.cli.main import make_parser
    from ctvr.orchestrator.cli.options import trust_user
    from ctvr.orchestrator.execution import ExecutionConfig

    text, chosen = ",".join(_words(preset)), name or options.get("resume")
    if chosen is None:
        chosen = f"{text or method or 'sweep'}-{Path(str(stream or 'shapes-5')).stem}-{time.strftime('%m%d-%H%M%S')}"
    listed = {"method": method, "stream": stream, "preset": text, "config": config, "runs": runs, "store": store}
    listed |= {"videos": videos, "name": None if "resume" in options else chosen, **options}
    listed["baselines"] = None if baselines is None else ",".join(_words(baselines))
    words = ["sweep"]
    for option, value in listed.items():
        if value is True:
            words.append(f"--{option.replace('_', '-')}")
        elif value is not None and value is not False and value != "":
            words.append(f"--{option.replace('_', '-')}={value}")
    for option, searched in (("space", space), ("space-add", space_add)):
        words += [f"--{option}={setting}={','.join(map(str, values))}" for setting, values in (searched or {}).items()]
    words += [f"{setting}={_text(value)}" for setting, value in (settings or {}).items()]
    words += [f"--trust={name}" for name in _words(trust)]
    arguments = make_parser().parse_args(words)
    trust_user(arguments, words)
    return Sweep(str(chosen), arguments.run(arguments), ExecutionConfig(runs=Path(runs), store=store))


def table(
    sweep: str | None = None,
    stream: str | None = None,
    *,
    direction: Literal["t2v", "v2t", "both"] = "t2v",
    split: Literal["", "test", "val"] = "",
    runs: Place = "runs",
) -> Any:
    """Return the table of a sweep's (or a stream's) complete runs: a row for each method, mean and `... std`.

    It contains one split: `split`, by default test if runs were measured on it. For a stream, trials are omitted.
    `.attrs["notes"]` of a data frame contains the footnotes. Only `ctvr table` writes files.

    Raises:
        ConfigError: if there are no such runs, or none of them is complete.
    """
    from ctvr.orchestrator.sweeps.table import made_tables

    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for made in made_tables(_execution(runs), sweep, stream, direction, split):
        notes += made.notes
        for row in made.rows:
            entry: dict[str, Any] = {"stream": made.stream, "method": row.label, "seeds": len(row.seeds)}
            for column in made.columns:
                if value := row.values.get(column.key):
                    entry |= {column.title: value.mean, f"{column.title} std": value.std}
            rows.append({**entry, "trials": row.trials, "marks": "; ".join(row.marks), "runs": ",".join(row.runs)})
    frame = _frame(rows)
    if hasattr(frame, "attrs"):
        frame.attrs["notes"] = notes
    return frame


def load(
    name: Place, *, runs: Place = "runs", store: str = "", videos: Place | None = None, trust: Words = ()
) -> Model:
    """Load a trained model for queries: `model.search("a red square moves left")`.

    Args:
        name: a folder with a saved model; the beginning of an MLflow run id; the name of a run; `best-STREAM`, which
            searches selected on validation videos; a sweep (its best trial); a method (its newest run).
        runs, store, videos: as in `run`.
        trust: classes `module:Class` to load, and addresses to use, although only the folder or record names them.

    Raises:
        ConfigError: if nothing has this name, or its weights no longer exist.
    """
    from ctvr.orchestrator.jobs.load_model import load as find

    _trust([str(name)], trust)
    return find(str(name), _execution(runs, store, videos))


def list_streams(*, runs: Place = "runs") -> list[str]:
    """Return the names of the streams: the embedded ones, then those imported into `runs`."""
    from ctvr.orchestrator.streams.load import available_streams

    return available_streams(Path(runs))


def stream(name: Place, *, runs: Place = "runs", videos: Place | None = None) -> Stream:
    """Load a stream by its name or manifest file; the videos of an embedded stream are rendered at its first use.

    Raises:
        ConfigError: for an unknown name or a malformed manifest.
    """
    from ctvr.orchestrator.streams.load import load_stream

    return load_stream(str(name), Path(runs).resolve(), Path(videos) if videos else None)


def list_methods() -> list[str]:
    """Return the names of all methods, named configurations, and methods of installed plug-ins."""
    from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, plugins

    return [*EVERY_METHOD, *CONFIGURATIONS, *plugins()]


def check_method(method: str, *, settings: Mapping[str, Any] | None = None, preset: Words = ()) -> list[str]:
    """Check that a method satisfies the contract of methods (`ctvr check-method`); return one line for each check.

    Args:
        method: a name of `ctvr.list_methods()`, or `module:Class`.
        settings: `method.*` and `base.*`.
        preset: name of a preset, which may be combined with changes.

    Raises:
        CtvrError: if a check fails; a ConfigError for an unknown method or setting.
    """
    from ctvr.orchestrator.jobs.check_method import check_method as checked

    _trust([method, *(settings or {}).values()])
    return checked(method, settings, _words(preset))


def schema(method: str = "") -> dict[str, Any]:
    """Return the JSON schema of the settings of one method, or of all methods (`ctvr schema`).

    Raises:
        ConfigError: for an unknown method.
    """
    from ctvr.orchestrator.catalog.schema import schema as made

    _trust([method])
    return made(method)


def _execution(runs: Place, store: str = "", videos: Place | None = None) -> ExecutionConfig:
    from ctvr.orchestrator.addresses import name_addresses
    from ctvr.orchestrator.execution import ExecutionConfig

    name_addresses([store, videos])
    return ExecutionConfig(runs=Path(runs), store=store, videos=Path(videos) if videos else None)


def _trust(given: Sequence[Any], named: Words = ()) -> None:
    """Trust the classes that the caller's arguments name, and those in `trust`."""
    from ctvr.methods import trust as allow
    from ctvr.orchestrator.sweeps.trust import trust_named

    allow(given)
    trust_named(_words(named))


def _words(given: Words) -> tuple[str, ...]:
    if isinstance(given, str):
        return tuple(word.strip() for word in given.split(",") if word.strip())
    if not all(isinstance(word, str) for word in given):
        raise ConfigError(f"not a list of names (got {given!r})", "preset", remedy="Write names.")
    return tuple(given)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _frame(rows: list[dict[str, Any]]) -> Any:
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return rows
    return pandas.DataFrame(rows)
