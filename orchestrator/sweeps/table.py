"""Tables of complete runs from MLflow, next to the papers' numbers (`ctvr table`)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator.config import Settings, suggest
from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import NOT_WRITABLE, ConfigError, UntrustedCode, os_error_text
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.memo import remembered
from ctvr.orchestrator.on_ray.plan import names_of
from ctvr.orchestrator.output_dir import runs_option
from ctvr.orchestrator.sweeps.comparison import gain_notes
from ctvr.orchestrator.sweeps.front import FrontResult, with_standing
from ctvr.orchestrator.sweeps.selection import selection_metric
from ctvr.orchestrator.sweeps.trust import trust_text
from ctvr.orchestrator.sweeps.verdict import read_verdict
from ctvr.orchestrator.sweeps.verified_notes import with_verified
from ctvr.orchestrator.tables.build import build
from ctvr.orchestrator.tables.footnotes import CHOICE, method_of
from ctvr.orchestrator.tables.paper_comparison import ROW, TABLE_NAME, PaperRun
from ctvr.orchestrator.tables.paper_numbers import PublishedRow, published_rows, row_of
from ctvr.orchestrator.tables.screen import pairs_text, to_text
from ctvr.orchestrator.tables.setting_diff import of_benchmark
from ctvr.orchestrator.tables.shown_columns import Direction, with_metrics
from ctvr.orchestrator.tables.significance import all_pairs, read_ranks
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tables.write import write
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

PIPE_WIDTH = 100  # characters per line if the output is not a terminal
# protocol -> benchmark for runs on other streams
BENCHMARK = {"cvlm": "cvlm", "ucl": "cifar-10", "qa": "msrvtt-qa"}


def table(
    execution: ExecutionConfig,
    sweep: str | None = None,
    stream: str | None = None,
    direction: Direction = "t2v",
    split: str = "",
    names_report: bool = True,
    figures: bool = False,
    pairs: bool = False,
    columns: Sequence[str] = (),
) -> str:
    """Write and return the table of a sweep's complete runs (or of each stream's complete runs) on one split.

    The returned text has aligned columns that fit the terminal; the files have all columns and notes.

    Args:
        execution: the runs folder.
        sweep, stream, direction, split: see `made_tables`.
        names_report: whether to suggest `ctvr report`, which a sweep writes itself.
        figures: whether to draw figures.
        pairs: whether to add the differences of all pairs of rows.
        columns: see `made_tables`.

    Raises:
        ConfigError: if no run, or no complete run, is found.
    """
    made = made_tables(execution, sweep, stream, direction, split, columns)
    name = sweep or stream or "all"
    place = execution.runs.resolve() / "tables" / name.replace(",", "+")
    try:
        files = write(made, place, figures)
        hint = "" if any(file.suffix == ".pdf" for file in files) else "; with --figures also figures"
        written = f"written: {os.path.relpath(place)} ({len(files)} files{hint})"
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        written = f"not written: {os_error_text(error)}"
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    more = runs_option(execution.runs) + trust_text()
    models = " ".join(f"--model best-{table.stream}" for table in made[:1])
    following = [f"ctvr report {name.partition(',')[0]}{more}"] * names_report
    following.append(f"ctvr search 'TEXT' {models}{more}")
    told = "\n      ".join(following)
    compared = "".join(f"\n{_pairs(each, execution.existing_tracker(), width)}" for each in made if pairs)
    return f"{to_text(made, width)}{compared}\n{written}\nnext: {told}"


def _pairs(table: Table, tracker: Tracker, width: int) -> str:
    """Return the differences of all pairs of a table's rows as text."""
    if table.measured != "R@1":
        return f"{table.heading}: pairs are compared in R@1, which this stream does not measure.\n"
    runs = [run for row in table.rows for run in row.runs]
    ranks = {run: found for run in runs if (found := read_ranks(tracker, run))}
    is_mean_of_tasks = any(column.key == "fr" for column in table.columns)  # CVLM
    return pairs_text(table, *all_pairs(table.rows, ranks, is_mean_of_tasks), width)


def made_tables(
    execution: ExecutionConfig,
    sweep: str | None = None,
    stream: str | None = None,
    direction: Direction = "t2v",
    split: str = "",
    columns: Sequence[str] = (),
) -> list[Table]:
    """Build the tables of a sweep's or a stream's complete runs, one for each stream, each on one split.

    Args:
        execution: the runs folder.
        sweep: name of the sweep whose runs are shown, or the runs of its newest rerun if the sweep has no runs.
        stream: name of the stream whose runs are shown, except trials and confirmations; or several, comma-separated.
        direction: retrieval direction.
        split: `test` or `val`; if empty, `test` if runs were evaluated on it, otherwise `val`.
        columns: names of further metrics, each a column.

    Raises:
        ConfigError: if no run, or no complete run, is found, or no run has one of `columns`.
    """
    if not (sweep or stream):
        raise ConfigError("the name of a sweep or a stream is missing.", "table")
    if stream and "," in stream:
        streams = [each.strip() for each in stream.split(",")]
        every = [made for each in streams for made in made_tables(execution, None, each, direction, split)]
        return with_metrics(every, columns)
    tracker = execution.existing_tracker()
    runs = tracker.find_runs(stream=stream, sweep=sweep)
    if sweep and not runs and (reruns := tracker.find_runs(tags={"ctvr.rerun_of": sweep})):
        sweep = reruns[-1].tags["ctvr.sweep"]  # a table without a searched row has runs in its rerun only
        runs = tracker.find_runs(sweep=sweep)
    if not runs:
        raise ConfigError(no_runs_of(sweep or stream or "", tracker), "table")
    if sweep and (parent := tracker.find_sweep(sweep)) and len(names_of((rule := selection_metric(parent))[0])) > 1:
        verdict = read_verdict(tracker, sweep)
        runs = with_standing(runs, rule, verdict if isinstance(verdict, FrontResult) else None)
    made = [with_verified(each, runs) for each in build(tracker, runs, papers_of, direction, split, sweep is None)]
    if not made:
        raise ConfigError(
            f"none of the {len(runs)} runs records that it was measured on test or validation videos.", "table"
        )
    ranks = {run.run_id: found for run in runs if run.tags.get(CHOICE) and (found := read_ranks(tracker, run.run_id))}
    notes = gain_notes(runs, ranks) if sweep is not None else []
    return with_metrics([replace(each, notes=(*notes, *each.notes)) for each in made], columns)


def no_runs_of(name: str, tracker: Tracker) -> str:
    """Return the message for a name that is neither a sweep nor a stream with runs."""
    sweeps = [sweep.name for sweep in reversed(tracker.find_sweeps())]
    runs = tracker.find_runs()
    meant = [run for run in runs if name in (run.name, run.tags.get("ctvr.method"), run.run_id[: max(6, len(name))])]
    if streams := dict.fromkeys(run.tags.get("ctvr.stream", "") for run in meant):
        what = "method" if meant[0].tags.get("ctvr.method") == name else "run"
        return f"{name!r} is a {what}, not a sweep or a stream. Use its stream: {' or '.join(streams)}."
    known = [*sweeps, *dict.fromkeys(run.tags.get("ctvr.stream", "") for run in runs)]
    some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    return f"{name!r} is neither a sweep nor a stream with runs.{suggest(name, known)} Known: {some or 'none yet'}."


def papers_of(run: RunRecord) -> list[PaperRun]:
    """Return the runs of papers that a run is compared with, first the printed row that the run reproduces."""
    benchmark, method = run.tags.get("ctvr.paper", ""), method_of(run)
    found: list[PaperRun] = []
    own = row_of(run.tags.get(TABLE_NAME, ""), run.tags.get(ROW, ""), benchmark)
    if own is not None:
        found.append(PaperRun(printed_settings(own), own, f"its paper's row on {own.stream}"))
    if main := paper_settings(run):
        found.append(PaperRun(main))
    others = [row for row in published_rows(benchmark, method=method) if row != own] if benchmark else []
    fullest_first = sorted(others, key=lambda row: -len(row.values))
    return found + [PaperRun(printed_settings(row), row) for row in fullest_first]


def printed_settings(row: PublishedRow) -> Settings:
    """Return all settings of a printed row on its benchmark."""
    question = ["printed settings", row.method, row.recommended, row.presets, row.settings]
    found: Settings = remembered(
        question, lambda: _resolve_settings(row.method, row.recommended, row.presets, row.settings)
    )
    return found


def _resolve_settings(method: str, recommended: Settings, presets: Sequence[str], given: Settings) -> Settings:
    from ctvr.orchestrator.settings.resolve import resolve_method  # imports torch

    return resolve_method(method, recommended, presets, given).settings


def paper_settings(run: RunRecord) -> Settings | None:
    """Return all settings of a run's method in its paper on the run's benchmark; None for an unknown method.

    On other streams, the paper's settings for MSRVTT are used; on streams with the CVLM protocol, of images or of
    questions, its settings for CVLM, CIFAR-10 or MSRVTT-QA.
    """
    benchmark = run.tags.get("ctvr.paper", "") or BENCHMARK.get(run.tags.get("ctvr.protocol", ""), "")
    return _paper_settings(method_of(run), benchmark)


@cache
def _paper_settings(method: str, benchmark: str) -> Settings | None:
    recommended = of_benchmark(benchmark)

    def compute() -> Settings:
        from ctvr.orchestrator.settings.presets import presets_of  # imports torch

        wanted = str(recommended.get("preset", "paper"))
        return _resolve_settings(method, recommended, (wanted if wanted in presets_of(method) else "paper",), {})

    try:
        is_ours = method in EVERY_METHOD or method in CONFIGURATIONS
        return remembered(["settings of a paper", method, recommended], compute) if is_ours else compute()
    except UntrustedCode:
        say(
            f"table: the runs of {method} are not compared with its defaults. To load that class, add --trust {method}."
        )
        return None
    except ConfigError:
        return None
