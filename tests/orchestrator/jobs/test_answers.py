"""Answers of a table's models in a report: the categories that they find, and what remains if these are unknown."""

from pathlib import Path

import pytest

import ctvr
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs import answers
from ctvr.orchestrator.tables.build import build

pytestmark = pytest.mark.slow


@pytest.fixture
def found(learned):
    execution = ExecutionConfig(runs=learned)
    tracker = execution.tracker()
    (table,) = build(tracker, tracker.find_runs(tags={"ctvr.complete": "true"}))
    return table, tracker, execution


def test_the_confusion_has_the_category_of_the_first_hit_of_each_caption(found, learned: Path):
    made = answers.find_answers(*found)
    model = ctvr.load(made.best.partition(",")[0], runs=learned)
    items = {item.video: item for task in model.stream.tasks for item in task.test}
    captions = [(text, item.category) for item in items.values() for text in item.captions]
    hits = model.search([text for text, _ in captions], k=1)
    assert made.categories == tuple((category, hit[0].category) for (_, category), hit in zip(captions, hits))
    assert len(made.histories) == len(found[0].rows)
    assert not [history.reason for history in made.histories if history.reason]


def test_an_unknown_confusion_leaves_the_histories(found, monkeypatch, caplog):
    whole = answers.find_answers(*found)

    def fail(*given):
        raise ConfigError("weights are missing", "model")

    monkeypatch.setattr(answers, "_confusion", fail)
    left = answers.find_answers(*found)
    assert left.histories == whole.histories
    assert left.categories == ()
    assert "the confusion of categories: model: weights are missing" in caplog.text
