"""`ctvr` alone: a map of the commands, and the next sensible one for the present folder."""

from __future__ import annotations

from pathlib import Path

MAP = """\
ctvr: experiments in continual text-to-video retrieval

  learn       ctvr run --method clip4clip --stream shapes-5       one method, in this process
              ctvr sweep                                          search settings, rerun the best over seeds, tabulate
              ctvr sweep --resume NAME, ctvr rerun --sweep NAME   go on; run winners again
              ctvr reproduce --list                               tables and figures of the papers
  look        ctvr table --stream shapes-5, ctvr report NAME        numbers; one HTML file to mail
              ctvr search "a red square" --model best-shapes-5    ask a trained model
              ctvr plot attention framefusion_moe                 what it attends to, merges, how it scores
              ctvr ui                                             MLflow's pages
  know        ctvr methods [NAME], ctvr streams, ctvr schema      what there is, with every setting
  own videos  ctvr streams import csv table=TABLE.csv --videos FOLDER
              ctvr frames FILE, ctvr frames FOLDER                how a video is read; which of a folder cannot be
  own method  ctvr new method NAME, ctvr check-method NAME             written so that it runs; what a method promises
  keep well   ctvr doctor, ctvr cache ls|verify|gc, ctvr sync, ctvr rebuild, ctvr explain KEY

ctvr COMMAND --help says more of each."""


def guide(runs: Path) -> str:
    """The map, then what to type next.

    Args:
        runs: folder of everything that is written; it need not exist, and is not made.
    """
    return f"{MAP}\n\nnext: {_next(runs)}"


def _next(runs: Path) -> str:
    more = "" if str(runs) == "runs" else f" --runs {runs}"
    if not (runs / "mlflow.db").is_file():
        return f"ctvr run --method zero_shot --stream shapes-5{more}   (nothing has run in {runs}/ yet)"
    plans = sorted((runs / "sweeps").glob("*/plan.json"), key=lambda file: file.stat().st_mtime)
    if not plans:
        return f"ctvr sweep{more}   ({runs}/ holds runs, but no sweep yet)"
    last = plans[-1].parent.name
    if not list((runs / "tables").glob(f"{last}-final-*")):
        return f"ctvr sweep --resume {last}{more}   (it has no table yet)"
    return f"ctvr report {last}{more}   (the last sweep, as one HTML file)"
