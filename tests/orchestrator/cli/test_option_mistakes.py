"""Mistakes in options: beginnings, arguments written as options, names, and values that are empty or addresses."""

import pytest

from tests.orchestrator.cli.test_main import ctvr

SWEEP = "sweep clip4clip shapes-5"
MISTAKES = [
    (f"{SWEEP} --gpus 1", f"--gpus: no such option. Write: ctvr {SWEEP} --gpus-per-trial 1"),
    (f"{SWEEP} --gpus=1", f"--gpus: no such option. Write: ctvr {SWEEP} --gpus-per-trial 1"),
    (f"{SWEEP} --smo", f"--smo: no such option. Write: ctvr {SWEEP} --smoke"),
    (f"{SWEEP} --max 3", "--max: is the beginning of --max-concurrent and --max-nodes. Write one of them in full."),
    (f"{SWEEP} --seed 3", "--seed: is a setting, not an option, and seed: not applicable, because all trials have"),
    ("serve --mod x", "--mod: no such option. Write: ctvr serve --model x"),
    ("serve clip4clip", "serve: --model is missing. Write: ctvr serve --model clip4clip"),
    ("serve --model=", "--model: its value is empty. Write --model MODEL, or omit it."),
    ("--vers", "--vers: no such option. Write: ctvr --version"),
    ("schema --method clip4clip", "--method: is an argument, not an option. Write: ctvr schema clip4clip"),
    ("streams import csv --table a.csv", "is an argument, not an option. Write: ctvr streams import csv table=a.csv"),
    ("streams import csv --name a/b", "(got 'a/b'). Use letters, digits and . _ - (at most 100"),
    ("reproduce bmu/table2 --name é", "for example e. Write: ctvr reproduce bmu/table2 --name e"),
    ("frames https://x.org/a.mp4", "FILE: is an address, not a path (got 'https://x.org/a.mp4'). Give a path on this"),
    ("frames ~nosuchuser/a.mp4", "FILE: '~nosuchuser/a.mp4': the user does not exist. Write the whole path."),
    ("plot attention m --count 1e99", "--count: is not a whole number (got '1e99'). Write --count 3."),
    ("streams check shapes-5 --videos -", "--videos: - is not a folder."),
    ("doctor --videos none", "--videos: none is not a folder."),
    ("ui --runs none", "--runs: none has no runs"),
    ("streams list", "list: no such action of streams. Write: ctvr streams"),
    ("streams shapes-5", "shapes-5: no such action of streams. Write: ctvr streams check shapes-5"),
    ("export onnx", "onnx: no such action of export. Write hf."),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistaken_option_leads_to_the_command_that_works(capsys, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = ctvr(capsys, *line.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_argument_is_refused(capsys):
    status, _, err = ctvr(capsys, "methods", "")
    assert status == 2
    assert "is an empty argument, perhaps an unset variable. Omit it. Write: ctvr methods" in err
