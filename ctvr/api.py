"""Public functions of `ctvr`. Each does what the command of its name does, but returns objects instead of text.

Tables are pandas data frames if pandas is installed, otherwise lists of dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ctvr.orchestrator.errors import ConfigError
from ctvr.results import Run, Sweep, as_frame

if TYPE_CHECKING:
    from ctvr.orchestrator.execution import ExecutionConfig
    from ctvr.orchestrator.retrieval.model import Model
    from ctvr.orchestrator.streams.stream import Stream

Words = str | Sequence[str]
Place = str | Path


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
        settings: dotted name -> value, such as `{"optim.epochs": 8, "method.beta": 0.4}`.
        preset: name of a preset, which may be combined with changes.
        config: a YAML file of settings; `settings` take precedence.
        runs: folder for all output.
        store: object store of frames and commits; default: below `runs`.
        videos: folder of the videos; default: the folder that the manifest names.
        fresh: whether to train finished tasks again.
        keep_model: whether to upload the trained model to MLflow.
        trust: classes `module:Class` to load, and addresses to use, although only the stream names them.

    Raises:
        ConfigError: for invalid arguments, before anything is trained.
    """
    from ctvr.orchestrator.jobs.run import train
    from ctvr.orchestrator.sweeps.settings_file import read_settings

    given = {**(read_settings(Path(config)) if config else {}), **(settings or {})}
    _trust([method, *_words_of(given)], trust)
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
    """Search settings of a method on Ray, rerun the best trials with several seeds, and make a table (`ctvr sweep`).

    Args:
        method, stream, settings, preset, config, runs, store, videos: as in `run`; `preset` may name a whole table.
        name: name of the sweep; if None, it is made from the method or preset, the stream and the time.
        space: setting -> values to search; other settings have their recommended values.
        space_add: setting -> values to search together with the method's own search space.
        baselines: methods to compare with the winner.
        trust: classes `module:Class` to load, and addresses to use, although only a stream, table or plan names them.
        options: every other option of `ctvr sweep --help`, with _ for -: `trials=8, seeds=3, confirm=2, smoke=True`.

    Raises:
        ConfigError: for invalid arguments, before anything is trained.
    """
    import time

    from ctvr.orchestrator.cli.main import make_parser
    from ctvr.orchestrator.cli.trust import trust_user
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
    columns: Words = (),
    runs: Place = "runs",
) -> Any:
    """Return the table of the complete runs of a sweep or stream, with a row for each method.

    Each metric has a column for its mean and a column `... std` for its standard deviation over runs. For a stream,
    trials are omitted. `.attrs["notes"]` of a data frame contains the footnotes. Only `ctvr table` writes files.

    Args:
        sweep: name of a sweep.
        stream: name of a stream, instead of a sweep.
        direction: search of videos by captions (t2v), of captions by videos (v2t), or both.
        split: split of the table; if "", test if runs were measured on it, otherwise val.
        columns: metrics to show as further columns, as `Run.metrics` names them.
        runs: folder of all output.

    Raises:
        ConfigError: if there are no such runs, or none of them is complete.
    """
    from ctvr.orchestrator.sweeps.table import made_tables

    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for made in made_tables(_execution(runs), sweep, stream, direction, split, _words(columns)):
        notes += made.notes
        for row in made.rows:
            entry: dict[str, Any] = {"stream": made.stream, "method": row.label, "seeds": len(row.seeds)}
            for column in made.columns:
                if value := row.values.get(column.key):
                    entry |= {column.title: value.mean, f"{column.title} std": value.std}
            rows.append({**entry, "trials": row.trials, "marks": "; ".join(row.marks), "runs": ",".join(row.runs)})
    frame = as_frame(rows)
    if hasattr(frame, "attrs"):
        frame.attrs["notes"] = notes
    return frame


def trials(sweep: str, *, reports: bool = False, runs: Place = "runs") -> Any:
    """Return a row for each trial of a sweep, including stopped trials.

    Args:
        sweep: name of the sweep.
        reports: whether to return a row for each learned task of each trial instead.
        runs: folder of all output.

    Raises:
        ConfigError: if the sweep does not exist.
    """
    from ctvr.orchestrator.sweeps.selection import trial_rows

    return as_frame(trial_rows(_execution(runs).tracker(), sweep, reports))


def load(
    name: Place, *, runs: Place = "runs", store: str = "", videos: Place | None = None, trust: Words = ()
) -> Model:
    """Load a trained model for queries: `model.search("a dog runs along a beach")`.

    Args:
        name: a folder with a saved model; OWNER/NAME@REVISION on the Hugging Face Hub; the beginning of an MLflow run
            id; the name of a run; `best-STREAM`, which searches selected on validation videos; a sweep (its best
            trial); a method (its newest run).
        runs, store, videos: as in `run`.
        trust: classes `module:Class` to load, and addresses to use, although only the folder or record names them.

    Raises:
        ConfigError: if nothing has this name, or its weights no longer exist.
    """
    from ctvr.orchestrator.jobs.load_model import load as find

    _trust([str(name)], trust)
    return find(str(name), _execution(runs, store, videos))


def list_streams(*, runs: Place = "runs") -> list[str]:
    """Return the names of the embedded streams, then of the streams that were imported into `runs`."""
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
    """Check that a method satisfies the contract of methods (`ctvr methods check`); return one line for each check.

    Args:
        method: a name of `ctvr.list_methods()`, or `module:Class`.
        settings: settings `method.*` and `base.*` with their values.
        preset: name of a preset, which may be combined with changes.

    Raises:
        CtvrError: if a check fails.
        ConfigError: for an unknown method or setting.
    """
    from ctvr.orchestrator.jobs.check_method import check_method as checked

    _trust([method, *_words_of(settings or {})])
    return checked(method, settings, _words(preset))


def schema(method: str = "") -> dict[str, Any]:
    """Return the JSON schema of the settings of one method, or of all methods (`ctvr methods --json`).

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
    """Trust the classes and architectures that the caller's arguments name, and those in `trust`."""
    from ctvr.methods import trust as allow
    from ctvr.orchestrator.sweeps.trust import trust_architectures, trust_named

    allow(given)
    trust_architectures(map(str, given))
    trust_named(_words(named))


def _words_of(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


def _words(given: Words) -> tuple[str, ...]:
    if isinstance(given, str):
        return tuple(word.strip() for word in given.split(",") if word.strip())
    if not all(isinstance(word, str) for word in given):
        raise ConfigError(f"not a list of names (got {given!r})", "preset", remedy="Use a list of names.")
    return tuple(given)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
