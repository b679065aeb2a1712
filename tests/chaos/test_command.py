"""`make chaos`: one line for a bad argument, the count in the last line, an exit status that reports differences."""

import pytest

from tests.chaos import __main__
from tests.chaos.__main__ import main, recovery_text


@pytest.mark.parametrize("words", [["--kills", "0"], ["--seed", "-1"], ["--ray", "--workers", "0"]])
def test_numbers_out_of_range_are_one_line(capsys, words):
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "chaos: --kills and --workers must be >= 1 and --seed >= 0.\n"


def test_one_kind_at_a_time(capsys):
    with pytest.raises(SystemExit) as error:
        main(["--engine", "--ray"])
    assert error.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_a_case_that_does_not_exist_is_one_line(capsys):
    assert main(["--cases", "vop,vopp"]) == 2
    assert capsys.readouterr().err.startswith("chaos: --cases: 'vopp' is not one of framefusion_moe, vr_lwf, ")


@pytest.mark.parametrize(("wrong", "status"), [([], 0), (["the digest differs"], 1)])
def test_the_status_says_whether_something_differs(capsys, monkeypatch, wrong, status):
    monkeypatch.setattr(__main__, "kill_engine", lambda *words, cases: ("chaos: 3 kills", wrong))
    assert main(["--kills", "3"]) == status
    said = capsys.readouterr()
    assert said.out == "chaos: 3 kills\n"
    assert ("kept: " in said.err) is bool(wrong)


def test_recovery_is_reported_as_median_and_maximum():
    assert recovery_text([]) == "no recovery was needed"
    assert recovery_text([1.0, 3.0, 2.0]) == "recovery median 2.00 s, max 3.00 s"


@pytest.mark.slow
def test_runs_killed_at_random_calls_give_equal_results(capsys, monkeypatch):
    for name in ("CTVR_CACHE", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):  # its settings are undone
        monkeypatch.setenv(name, "")
    assert main(["--engine", "--kills", "2", "--seed", "1", "--cases", "vop"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("chaos: 2 kills, 0 mismatches, ")
    assert "recovery median" in last
