"""Bytes that methods store after many tasks."""

import pytest

from ctvr.methods import METHODS
from ctvr.methods.base import Task
from ctvr.orchestrator.catalog.cost_table import GROWING, count_bytes, growth_table, measure_growth
from ctvr.orchestrator.learning.evaluation.cost import text_passes
from ctvr.orchestrator.method_checks.subject import Subject
from tests.refusing import refuses


@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith("umt")])
def test_the_table_has_every_method_that_grows_and_no_other(name):
    found = []
    for tasks in (2, 5):
        method = Subject.of(name).make()
        for index in range(tasks):
            method.begin_task(Task(index, f"task_{index}", tasks, (2 * index, 2 * index + 1), 2 * tasks))
        found.append((count_bytes(method), text_passes(method, tasks)))
    assert (found[0] != found[1]) == (name in GROWING)


def test_what_is_kept_is_that_of_the_papers_sizes():
    d = 512
    assert (measure_growth("qdc", 7)[0] - measure_growth("qdc", 2)[0]) == 5 * (
        4 * d + 1
    )  # a mean drift, and whether there is one
    first, second = measure_growth("lpi", 2), measure_growth("lpi", 3)
    assert second[0] > first[0]
    assert (first[1], second[1]) == (2, 3)


def test_a_table_has_a_line_for_each_and_refuses_no_tasks(monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.catalog.cost_table.GROWING", ("qdc", "lpi"))
    lines = growth_table(12).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["qdc", "lpi"]
    assert [line.split("|")[5].strip() for line in lines[2:]] == ["1", "12"]
    for wrong in (0, 1001):
        with refuses(1, 1000, wrong, where="--tasks"):
            growth_table(wrong)
