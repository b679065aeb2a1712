"""RESULTS.md and the marks of old tables equal the generator's output for the printed tables."""

import html
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.tables.build import tables
from tests.orchestrator.tables.test_build import run
from tools import results_page
from tools.reading import lines_of
from tools.results_page import (
    MARK,
    RULES,
    SEARCHES,
    TITLES,
    best,
    main,
    marked,
    measured,
    older,
    page_of,
    pages,
    source_commit,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = """# shapes-5: a table

```bash
ctvr sweep --preset bmu-table2 --trials 0
```

2 runs, 4 min, 2026-11-22, commit abcdef0. Conditions

| Method | R@1 ↑ | R@1 vs best |
| :-- | --: | --: |
| a\\_b<sup>a,b</sup> | **2.00** | best |
| c | 1.00 | -1.00 \\[-3.00, 1.00\\] p=0.300 |

## Reading

Text with | in it.
"""


def test_results_and_its_pages_are_what_the_generator_writes():
    assert [path.name for path, text in pages().items() if text != path.read_text(encoding="utf-8")] == []


def test_every_page_with_a_measured_table_is_listed():
    with_table = {
        path.stem for path in (ROOT / "results").glob("*.md") if re.search(r"^\| Method \|", path.read_text(), re.M)
    }
    assert with_table == TITLES.keys()


def test_readme_shows_rows_of_the_page_of_make_sweep():
    _, lines = lines_of(page_of("make-sweep").read_text())
    readme = (ROOT / "README.md").read_text()
    heads = re.search(r"^\| method \| (R@1 ↑ \|.*) \|$", readme, re.MULTILINE)
    assert heads is not None
    assert {"R@5 ↑", "R@1 vs best"} <= set(heads[1].split(" | "))
    for line in lines:
        cells = [line.name, *(line.cells[title] for title in heads[1].split(" | "))]
        assert f"\n| {html.unescape(' | '.join(cells))} |\n" in readme


def test_the_best_row_is_that_of_the_first_block_with_two_rows():
    assert best(PAGE) == ("a_b", "R@1 2.00")
    assert best(PAGE.replace("| 1.00 |", "| **2.00** |")) == ("a_b, c", "R@1 2.00")
    spreads = PAGE.replace("**2.00**", "**2.00±0.30**").replace("| 1.00 |", "| **2.00±0.40** |")
    assert best(spreads) == ("a_b, c", "R@1 2.00±0.30, 2.00±0.40")
    replayed = "| d | **9.00** | best |\n| e | 8.00 | -1.00 |"
    titles = ("| *Trains on the current task* |  |  |", "| *Keeps pairs of earlier tasks* |  |  |")
    table = PAGE.replace("| a", f"{titles[0]}\n| a").replace(
        "\n\n## Reading", f"\n{titles[1]}\n{replayed}\n\n## Reading"
    )
    assert best(table) == ("a_b", "R@1 2.00")
    alone = table.replace("| c | 1.00 | -1.00 \\[-3.00, 1.00\\] p=0.300 |\n", "")
    assert best(alone) == ("d (keeps pairs of earlier tasks)", "R@1 9.00")


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("trains on the stored features of unlabeled test videos of earlier tasks", "c"),
        ("updates its replay buffer once, at the end of each task", "c"),
        ("transductive scoring: a query's result depends on the other queries of the test set", "c"),
        ("chosen by us, because no paper publishes these values", "a_b"),
    ],
)
def test_a_row_of_an_older_page_is_in_the_block_that_its_footnotes_name(note, expected):
    page = PAGE.replace(
        "\n\n## Reading", f"\n| z | 0.50 | -1.50 |\n\n- <sup>a</sup> few\n- <sup>b</sup> {note}\n\n## Reading"
    )
    assert best(page)[0] == expected


def test_a_table_is_marked_by_each_rule_that_came_later_and_concerns_it():
    old = marked("bmu-table2", PAGE)
    assert [line for line in old.splitlines() if line.startswith(MARK)] == [
        f"{MARK}P-values and intervals are now simultaneous (2026-11-25, a207222d). "
        "The queues of momentum contrast are now smaller than a task (2026-11-25, 821b622b). "
        "A row is now compared only with rows of its block, which have equal access to data "
        "(2026-11-28, 0ee8a551). "
        "R@k now counts a tie by its expected value; shapes-5 has no ties (2026-11-28, 7266501d). "
        "Intervals are now a continuous function of the variance over seeds (2026-11-28, 6b8e6779)."
    ]
    assert old.index(MARK) < old.index("| Method |")
    assert marked("bmu-table2", old) == old
    assert older("tempme-table2", PAGE) == [RULES[0], *RULES[-3:]]
    assert older("tempme-table2", PAGE.replace(" vs best", "")) == [RULES[-2]]
    assert older("tempme-table7", PAGE.replace("R@1", "Accuracy")) == []


def test_a_table_that_was_measured_after_the_rules_has_no_mark():
    new = marked("bmu-table2", PAGE).replace("2026-11-22", RULES[-1].date)
    assert MARK in new
    assert marked("bmu-table2", new) == PAGE.replace("2026-11-22", RULES[-1].date)


def test_a_page_that_does_not_say_how_it_was_measured_is_refused():
    with pytest.raises(ValueError, match=r"results/x\.md: no line such as '18 runs, 14 min, 2026"):
        measured("x", PAGE.replace(", commit abcdef0", ""))


@pytest.fixture
def copied(monkeypatch, tmp_path) -> Path:
    """Copy the pages that the generator may change."""
    (tmp_path / "results").mkdir()
    for path in [ROOT / "README.md", ROOT / "RESULTS.md", *map(page_of, (*TITLES, SEARCHES))]:
        (tmp_path / path.relative_to(ROOT)).write_text(path.read_text())
    monkeypatch.setattr(results_page, "ROOT", tmp_path)
    return tmp_path


def records(*commits: str) -> list:
    """Write runs of two methods, with a seed for each commit, of 2027-01-15."""
    found = []
    for seed, commit in enumerate(commits):
        tags = {"ctvr.sweep": "bmu-table2-final-0", "ctvr.rerun_of": "bmu-table2", "ctvr.commit": commit}
        found += [run(method, seed, r1 + seed, tags) for method, r1 in (("lwf", 20.0), ("lora", 10.0))]
    return [replace(each, started=1_800_000_000_000) for each in found]


def sweep_of(monkeypatch, runs: list, status: str = "FINISHED") -> None:
    def find_runs(tags: dict) -> list:
        return [each for each in runs if tags.items() <= each.tags.items()]

    tracker = SimpleNamespace(find_runs=find_runs, find_sweep=lambda name: SimpleNamespace(status=status))
    monkeypatch.setattr(ExecutionConfig, "existing_tracker", lambda self: tracker)
    monkeypatch.setattr(results_page, "source_commit", lambda commit: commit[:8])
    monkeypatch.setattr(results_page, "made_tables", lambda execution, sweep: tables(runs))


def test_added_table_keeps_the_reading_of_its_page(monkeypatch, copied):
    sweep_of(monkeypatch, records(*["0123456789abcdef"] * 3))
    page = copied / "results/bmu-table2.md"
    before = page.read_text()
    assert main(["--add", "bmu-table2"]) == 0
    after = page.read_text()
    assert after.partition("\n## ")[2] == before.partition("\n## ")[2]
    assert after.partition("```\n")[0] == before.partition("```\n")[0]
    assert re.search(r"^6 runs, .+ of training and evaluation, 2027-01-15, commit 01234567\. \[", after, re.M)
    assert MARK not in after
    printed = [(line.name, line.cells["R@1 ↑"]) for line in lines_of(after)[1]]
    assert printed == [("lwf", "**21.00±1.00**"), ("lora", "11.00±1.00")]
    assert "| lwf | R@1 21.00±1.00 | 2027-01-15 | commit 01234567 |" in (copied / "RESULTS.md").read_text()


def test_a_table_of_runs_of_two_commits_is_refused(monkeypatch, copied, capsys):
    sweep_of(monkeypatch, records("0123456789abcdef", "fedcba9876543210"))
    before = {path: path.read_text() for path in copied.rglob("*.md")}
    assert main(["--add", "bmu-table2"]) == 2
    assert "--add bmu-table2: runs of several commits (01234567, fedcba98)." in capsys.readouterr().err
    assert {path: path.read_text() for path in copied.rglob("*.md")} == before


@pytest.mark.parametrize(("name", "status"), [("camoe-table5", "FINISHED"), ("bmu-table2", "KILLED")])
def test_a_sweep_that_is_missing_or_not_finished_is_refused(monkeypatch, copied, capsys, name, status):
    sweep_of(monkeypatch, records("0123456789abcdef"), status)
    assert main(["--add", name, "--runs", "here"]) == 2
    assert f"--add {name}: " in capsys.readouterr().err


def test_the_commit_of_a_table_is_the_last_one_that_changed_sources(monkeypatch, tmp_path):
    def git(*words: str) -> str:
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *named, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    monkeypatch.setattr(results_page, "ROOT", tmp_path)
    git("init", "-q")
    heads = []
    for name in ("methods/lwf.py", "docs/faq.md", "orchestrator/config.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-q", "-m", name)
        heads.append(git("rev-parse", "HEAD").strip())
    assert [source_commit(head) for head in heads] == [heads[0][:8], heads[0][:8], heads[2][:8]]
