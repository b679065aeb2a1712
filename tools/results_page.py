"""Generator of RESULTS.md from the printed tables in results/: `python -m tools.results_page`.

A page in results/ has one table as `ctvr table` wrote it, and one line on how it was measured. From these pages the
generator writes the list in RESULTS.md: the best row of each table, its value, date and commit. If a rule (a commit
that changes values) is newer than a page's table, the page gets a line that names the rule. The page's reading gets the
sentences of `tools/reading.py`. README's table of `make sweep` has columns of results/make-sweep.md.

`--add PAGE --runs FOLDER` first puts the table of the sweep PAGE into results/PAGE.md, with its number of runs, date
and commit. The text from the heading `Reading` on is kept. `--sweep NAME` selects a sweep of another name.
"""

from __future__ import annotations

import argparse
import fnmatch
import html
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ctvr.methods import IMAGE_METHODS, find_method
from ctvr.orchestrator.console import format_duration
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.sweeps.table import made_tables
from ctvr.orchestrator.tables.formats import to_markdown
from ctvr.orchestrator.tables.presets import split_row
from ctvr.orchestrator.tables.table import ACCESS
from tools.reading import Line, lines_of, with_statement

ROOT = Path(__file__).resolve().parent.parent
TITLES = {
    "make-sweep": "main job (`make sweep`)",
    "worlds-fair": "what replay, compute and searched videos contribute (ours)",
    "ctvr-table1-originals": "CTVR Table 1, our and the authors' recipes",
    "ctvr-table2": "CTVR Table 2, ablation",
    "ctvr-fig8": "CTVR Figure 8, settings",
    "structalign-table3": "StructAlign Table 3, ablation",
    "camoe-table5": "CAMoE Table 5, gates",
    "camoe-table6": "CAMoE Table 6, Dual Softmax",
    "camoe-fig6": "CAMoE Figure 6, losses",
    "tempme-table1": "TempMe Table 1, token merging",
    "tempme-table2": "TempMe Table 2, efficient adaptation",
    "tempme-table7": "TempMe Table 7, questions",
    "index-age": "age of the index (ours)",
    "upgrade": "upgrade within a stream (ours)",
    "efficient-continual": "continual methods with fewer tokens (ours)",
    "bmu-table2": "BMU-MoCo Table 2, ablation",
    "bmu-table4": "BMU-MoCo Table 4, images",
}
SEARCHES = "five-searches"  # its table was put together from five sweeps
SOURCES = ("ctvr", "methods", "orchestrator", "search_spaces")
README_COLUMNS = ("R@1 ↑", "R@5 ↑", "BWF ↓", "R@1 vs best", "Past kept (%)")
HEAD = "| table | best row | value | measured | commit |"
MEASURED = re.compile(
    r"^\d+ (?:runs|searches), .+, (?P<date>[\d-]{10}), (?P<commit>(?:commit|after|before) \w+)\. ", re.MULTILINE
)
CONDITIONS = "[Conditions of all tables](../RESULTS.md#conditions)"
MARK = "**Measured on an older commit**: ctvr has changed since then. "


@dataclass(frozen=True)
class Rule:
    """A commit that changes values in tables, and the tables to which it applies."""

    date: str
    commit: str
    what: str  # the change, as a sentence without its full stop
    pages: tuple[str, ...] = ("*",)
    columns: tuple[str, ...] = ()  # only tables with one of them


WITH_INTERVALS = ("R@1 vs best", "Gap", "over 3 seeds")  # columns of tables, of gaps, of searches
RULES = (
    Rule("2026-11-25", "a207222d", "P-values and intervals are now simultaneous", columns=("R@1 vs best", "on test")),
    Rule("2026-11-25", "821b622b", "The queues of momentum contrast are now smaller than a task", ("bmu-*",)),
    Rule(
        "2026-11-25",
        "d858b8c6",
        "BWF of methods that normalize scores is now computed in a task's own gallery",
        ("camoe-table6", "structalign-*", "ctvr-table1*", "efficient-*"),
    ),
    Rule(
        "2026-11-25",
        "da201a7a",
        "Rows that train on test videos now have a footnote and a control row",
        ("ctvr-table[12]*", "ctvr-fig8"),
    ),
    Rule(
        "2026-11-28",
        "0ee8a551",
        "A row is now compared only with rows of its block, which have equal access to data",
        columns=("R@1 vs best",),
    ),
    Rule(
        "2026-11-28",
        "7266501d",
        "R@k now counts a tie by its expected value; shapes-5 has no ties",
        columns=("R@1 ↑", "over 3 seeds"),
    ),
    Rule(
        "2026-11-28",
        "6b8e6779",
        "Intervals are now a continuous function of the variance over seeds",
        columns=WITH_INTERVALS,
    ),
)


def page_of(name: str) -> Path:
    return ROOT / "results" / f"{name}.md"


def best(text: str) -> tuple[str, str]:
    """Return the names of the rows with the best value of the first column, and that value with its column.

    Only the first block in which at least two rows compete is considered. Its title is added unless it is the first
    kind of block. In older tables, footnotes assign the rows to blocks.

    Raises:
        ValueError: if no block has two rows with values.
    """
    titles, lines = lines_of(text)
    column, sign = titles[1], -1 if titles[1].endswith("↓") else 1
    blocks: dict[str, list[Line]] = {}
    for line in lines:
        if math.isfinite(line.value(column)[0]) and (block := _block(line, text)) is not None:
            blocks.setdefault(block, []).append(line)
    for access, title in ACCESS.items():
        found = blocks.get(title, [])
        if len(found) > 1 and access != "joint":
            top = max(sign * line.value(column)[0] for line in found)
            names = [line.name for line in found if sign * line.value(column)[0] == top]
            cells = dict.fromkeys(line.cells[column].strip("*") for line in found if line.name in names)
            return ", ".join(names) + f" ({title.lower()})" * bool(access), f"{column.rstrip(' ↑↓')} {', '.join(cells)}"
    raise ValueError(f"{text.splitlines()[0]}: no two rows to compare below {column!r}.")


def _block(line: Line, text: str) -> str | None:
    """Return the title of the block in which a row competes; None for a transductive row, which does not compete."""
    marks = [mark for sign in line.signs if sign for mark in re.findall(rf"^- <sup>{sign}</sup> (.+)", text, re.M)]
    if any(mark.startswith("transductive scoring") for mark in marks):
        return None
    if line.block:
        return line.block
    if any("joint training has access to all tasks" in mark for mark in marks):
        return ACCESS["joint"]
    if (name := split_row(line.name.partition(" ")[0])[0]) in IMAGE_METHODS:  # their rows had no such marks
        cls = find_method(name)
        is_joint = cls.capabilities(cls.Config()).trains_on == "seen"
        return ACCESS["joint" if is_joint else "videos" * cls.keeps_videos(cls.Config())]
    keeps = any(mark.startswith("updates its replay buffer") for mark in marks)
    words = ["videos"] * keeps + ["searched"] * any("trains on the stored features of" in mark for mark in marks)
    return ACCESS["+".join(words)]


def measured(name: str, text: str) -> dict[str, str]:
    """Return the `date` and the `commit` of a page's table.

    Raises:
        ValueError: if the page does not contain a line with both.
    """
    found = MEASURED.search(text)
    if found is None:
        raise ValueError(f"results/{name}.md: no line such as '18 runs, 14 min, 2026-11-22, commit c0a1fb3. '")
    return found.groupdict()


def older(name: str, text: str) -> list[Rule]:
    """Return the rules that apply to a page and are newer than its table."""
    date, titles = measured(name, text)["date"], lines_of(text)[0]
    return [
        rule
        for rule in RULES
        if date < rule.date
        and any(fnmatch.fnmatch(name, pattern) for pattern in rule.pages)
        and (not rule.columns or not set(rule.columns).isdisjoint(titles))
    ]


def marked(name: str, text: str) -> str:
    """Return a page with a line on the rules that are newer than its table; without this line if there are none."""
    text = re.sub(rf"^{re.escape(MARK)}.*\n\n", "", text, flags=re.MULTILINE)
    if not (rules := older(name, text)):
        return text
    said = " ".join(f"{rule.what} ({rule.date}, {rule.commit})." for rule in rules)
    return re.sub(r"^\| ", lambda _: f"{MARK}{said}\n\n| ", text, count=1, flags=re.MULTILINE)


def listing() -> str:
    """Return the list of tables for RESULTS.md."""
    lines = [HEAD, "|:--|:--|--:|:--|:--|"]
    for name, title in TITLES.items():
        text = page_of(name).read_text(encoding="utf-8")
        about = measured(name, text)
        cells = [f"[{title}](results/{name}.md)", *best(text), about["date"], about["commit"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def with_main_table(text: str) -> str:
    """Return README, `text`, with its table of `make sweep` replaced by columns of results/make-sweep.md.

    Raises:
        ValueError: if README does not contain this table.
    """
    titles, lines = lines_of(page_of("make-sweep").read_text(encoding="utf-8"))
    heads = [title for title in README_COLUMNS if title in titles]
    table = [f"| {' | '.join(['method', *heads])} |", f"|:--|{'--:|' * len(heads)}"]
    block = ""
    for line in lines:
        if line.block != block:
            block = line.block
            table.append(f"| *{block}* |{' |' * len(heads)}")
        table.append(html.unescape(f"| {' | '.join([line.name, *(line.cells[title] for title in heads)])} |"))
    made, count = re.subn(r"^\| method \| R@1 ↑ \|.*\n(\|.*\n)+", lambda _: "\n".join([*table, ""]), text, flags=re.M)
    if count != 1:
        raise ValueError("README.md: the table of `make sweep` (| method | R@1 ↑ | ...) is missing.")
    return made


def pages() -> dict[Path, str]:
    """Return the new texts of RESULTS.md, README.md and each page with a table: file -> text."""
    found = {
        page_of(name): with_statement(marked(name, page_of(name).read_text(encoding="utf-8")))
        for name in (*TITLES, SEARCHES)
    }
    found[ROOT / "README.md"] = with_main_table((ROOT / "README.md").read_text(encoding="utf-8"))
    page = ROOT / "RESULTS.md"
    own = re.compile(rf"^{re.escape(HEAD)}\n(\|.*\n)+", re.MULTILINE)
    text, count = own.subn(lambda _: listing(), page.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"RESULTS.md: the table that begins with {HEAD!r} occurs {count} times, not once.")
    return {**found, page: text}


def printed(name: str, runs: Path, sweep_name: str = "") -> str:
    """Return a page with the newest table of the sweep `sweep_name` (default: `name`), without the part `Reading`.

    Raises:
        ConfigError: if the sweep does not exist or is not complete.
        ValueError: if its runs are from several commits.
    """
    execution = ExecutionConfig(runs=runs)
    tracker = execution.existing_tracker()
    searched = sweep_name or name
    found = tracker.find_runs(tags={"ctvr.rerun_of": searched, "ctvr.complete": "true"})
    sweep = found[-1].tags["ctvr.sweep"] if found else ""
    if not sweep or getattr(tracker.find_sweep(sweep), "status", "") != "FINISHED":
        raise ConfigError(f"no complete sweep called {searched} in {runs}.", f"--add {name}")
    (table,) = made_tables(execution, sweep)
    records = [run for run in found if run.tags["ctvr.sweep"] == sweep]
    commits = {source_commit(run.tags.get("ctvr.commit", "")) for run in records}
    if len(commits) != 1:
        raise ValueError(f"--add {name}: runs of several commits ({', '.join(sorted(commits))}). Run the table again.")
    day = datetime.fromtimestamp(max(run.started for run in records) / 1000, timezone.utc).date()
    spent = format_duration(sum(row.seconds for row in table.rows))
    _, _, rest = to_markdown(table).partition("\n\n")
    about = f"{len(records)} runs, {spent} of training and evaluation, {day}, commit {commits.pop()}. {CONDITIONS}"
    heading = re.match(r"# .+\n\n```bash\n.+\n```\n\n", page_of(name).read_text(encoding="utf-8"))
    assert heading is not None, name
    return f"{heading[0]}{about}\n\n{rest}"


def source_commit(commit: str) -> str:
    """Return the last commit up to `commit` that changes code in SOURCES and so can change a result."""
    words = ["git", "log", "-1", "--format=%h", "--abbrev=8", commit, "--", *SOURCES]
    return subprocess.run(words, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results_page", description=str(__doc__).split("\n")[0])
    parser.add_argument(
        "--add", choices=TITLES, metavar="PAGE", help="page whose table is replaced by that of the sweep"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="runs folder (default: runs)")
    parser.add_argument("--sweep", default="", metavar="NAME", help="name of the sweep (default: PAGE)")
    arguments = parser.parse_args(argv)
    try:
        if arguments.add:
            page = page_of(arguments.add)
            _, heading, reading = page.read_text(encoding="utf-8").partition("\n## ")
            made = printed(arguments.add, arguments.runs, arguments.sweep)
            page.write_text(f"{made}{heading}{reading}", encoding="utf-8")
        for path, text in pages().items():
            path.write_text(text, encoding="utf-8")
    except (ConfigError, ValueError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"results: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
