"""A journal grows by lines and survives a kill."""

import json

import pytest

from ctvr.orchestrator.on_ray.journal import HalvingTrial, Journal


def test_a_journal_grows_by_a_line_and_may_end_within_one(tmp_path, caplog):
    file = tmp_path / "s" / "journal.json"
    journal, trials = Journal(file, "code"), [HalvingTrial(n, {"x": n}, {"x": n}, str(n)) for n in (1, 2)]
    for trial in trials:
        for task in (1, 2):
            trial.scores[task] = (float(task + trial.number),)
            before = file.read_text() if file.exists() else ""
            journal.write("", trial)
            assert file.read_text().startswith(before)
    assert len(file.read_text().splitlines()) == 5
    file.write_text(file.read_text()[:-9])  # a kill within the last line: the second trial's second task
    again = Journal(file, "code")
    assert [entry["scores"] for entry in again.rows[""].values()] == [{"1": [2.0], "2": [3.0]}, {"1": [3.0]}]
    again.write("", trials[1])
    assert [entry["scores"] for entry in Journal(file, "code").rows[""].values()] == [
        {"1": [2.0], "2": [3.0]},
        {"1": [3.0], "2": [4.0]},
    ]
    assert not caplog.records
    file.write_text("")
    assert Journal(file, "code").rows == {}
    assert "is damaged" in caplog.text


def test_a_journal_of_other_code_is_named_and_not_used(tmp_path, caplog):
    trial = HalvingTrial(1, {}, {}, "1", {1: (2.0,)})
    Journal(tmp_path / "journal.json", "old").write("", trial)
    assert Journal(tmp_path / "journal.json", "new").rows == {}
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{tmp_path / 'journal.json'} was written by another version of the code")


@pytest.mark.parametrize(
    "about",
    ["[1]", "null", '{"scores": [1]}', '{"scores": {"a": "b"}}', '{"scores": {"1": 2.0}}', '{"scores": null}',
     '{"reused": null}', '{"reused": Infinity}', '{"reads": 5}', "[" * 100_000],
)  # fmt: skip
def test_a_line_of_another_type_is_left_out_alone(tmp_path, about):
    file, trial = tmp_path / "journal.json", HalvingTrial(1, {}, {}, "1")
    good = json.dumps(
        {"row": "r", "label": trial.label, "about": {"scores": {"1": [2.0, 7.0]}, "reads": ["x"], "reused": 3}}
    )
    bad = f'{{"row": "r", "label": "bad", "about": {about}}}'
    file.write_text("\n".join(['{"sources": "code"}', good, bad, ""]))
    journal = Journal(file, "code")
    assert list(journal.rows["r"]) == [trial.label]
    journal.read("r", trial)
    assert (trial.scores, trial.reads, trial.reused) == ({1: (2.0, 7.0)}, ("x",), 3)
