"""A journal grows by lines and survives a kill."""

from __future__ import annotations

from ctvr.orchestrator.on_ray.journal import HalvingTrial, Journal


def test_a_journal_grows_by_a_line_and_may_end_within_one(tmp_path, caplog):
    file = tmp_path / "s" / "journal.json"
    journal, trials = Journal(file, "code"), [HalvingTrial(n, {"x": n}, {"x": n}, str(n)) for n in (1, 2)]
    for trial in trials:
        for task in (1, 2):
            trial.scores[task] = float(task + trial.number)
            before = file.read_text() if file.exists() else ""
            journal.write("", trial)
            assert file.read_text().startswith(before)
    assert len(file.read_text().splitlines()) == 5
    file.write_text(file.read_text()[:-9])  # a kill within the last line: the second trial's second task
    again = Journal(file, "code")
    assert [entry["scores"] for entry in again.rows[""].values()] == [{"1": 2.0, "2": 3.0}, {"1": 3.0}]
    again.write("", trials[1])
    assert [entry["scores"] for entry in Journal(file, "code").rows[""].values()] == [
        {"1": 2.0, "2": 3.0},
        {"1": 3.0, "2": 4.0},
    ]
    assert not caplog.records
    file.write_text("")
    assert Journal(file, "code").rows == {}
    assert "is damaged" in caplog.text
