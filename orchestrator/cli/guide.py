"""Output of `ctvr` without arguments: an overview of the commands, and the next command for the current folder."""

from __future__ import annotations

from pathlib import Path

MAP = """\
ctvr: experiments in continual text-to-video retrieval

  start       ctvr demo                                           two short runs and their report, in a minute
  train       ctvr run clip4clip shapes-5                         one method, in this process
              ctvr sweep                                          search settings, rerun the best over seeds, tabulate
              ctvr sweep --resume NAME, ctvr rerun NAME           resume a sweep; rerun its winners
              ctvr reproduce --list                               tables and figures of the papers
  results     ctvr table shapes-5, ctvr report NAME               tables; a report in one HTML file
              ctvr search "TEXT" --model best-shapes-5            search videos with a trained model
              ctvr serve --model best-shapes-5                    the same over HTTP: a page and JSON
              ctvr plot attention framefusion_moe                 attention, merged patches, scores, drift
              ctvr runs, ctvr runs show RUN, ctvr runs rm RUN     recorded runs; how to repeat one
              ctvr runs explain RUN                               the origin of a run, or of a number in a table
              ctvr runs publish NAME, ctvr runs verify FILE       write the ranks of a table as one file; check it
              ctvr runs compare A B                               two runs, bundles or CSV files, query by query
              ctvr ui                                             MLflow's web interface
  reference   ctvr methods [NAME], ctvr streams                   methods with their settings; streams
  own videos  ctvr streams import csv table=TABLE.csv --videos FOLDER
              ctvr streams frames FILE                            frames of a video; unreadable videos of a folder
  embedders   ctvr migrate OLD NEW                                switch embedders: map, re-encode or stay
              ctvr streams export-script NAME                     a script that computes features without ctvr
  own method  ctvr methods new NAME, ctvr methods check NAME      a runnable template; contract checks
  maintain    ctvr doctor, ctvr cache, ctvr runs sync             this machine, the store, records that still wait

Details: ctvr COMMAND --help"""


def guide(runs: Path) -> str:
    """Return the overview and the next command.

    Args:
        runs: the runs folder; it need not exist, and is not created.
    """
    return f"{MAP}\n\nnext: {_next(runs)}"


def _next(runs: Path) -> str:
    from ctvr.orchestrator.output_dir import runs_option

    more = runs_option(runs)
    if not (runs / "mlflow.db").is_file():
        return f"ctvr demo{more}   (no runs in {runs}/ yet)"
    plans = sorted((runs / "sweeps").glob("*/plan.json"), key=lambda file: file.stat().st_mtime)
    if not plans:
        return f"ctvr sweep{more}   (no sweep in {runs}/ yet)"
    last = plans[-1].parent.name
    if not list((runs / "tables").glob(f"{last}-final-*")):
        return f"ctvr sweep --resume {last}{more}   (it has no table yet)"
    return f"ctvr report {last}{more}   (the last sweep, as one HTML file)"
