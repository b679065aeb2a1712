"""Names of methods and streams in the wrong place, or in too great a number."""

import pytest

from tests.orchestrator.cli.test_main import ctvr

MISTAKES = [
    (
        "run shapes-5 shapes-10",
        "are two streams, but a stream and a method are needed. Write: ctvr run shapes-5 clip4clip",
    ),
    (
        "run clip4clip lwf",
        "are two methods, but a method and a stream are needed. Write: ctvr run clip4clip shapes-5",
    ),
    (
        "run clip4clip lwf shapes-5",
        "is a second method after clip4clip. Omit it. Write: ctvr run clip4clip shapes-5",
    ),
    ("sweep clip4clip lwf", "after clip4clip, which is searched. Write: ctvr sweep clip4clip --baselines lwf"),
    ("sweep shapes-5 worlds-5", "'worlds-5': is a second stream after shapes-5. Omit it. Write: ctvr sweep shapes-5"),
    ("run --method shapes-5 --stream clip4clip", "all corrected: ctvr run --method clip4clip --stream shapes-5"),
    (
        "run --method shapes-5",
        "method: 'shapes-5' is a stream, not a method. Give a method; `ctvr methods` lists them.",
    ),
    ("methods shapes-5", "method: 'shapes-5' is a stream, not a method. Give a method; `ctvr methods` lists them."),
    ("cache build lwf", "stream: 'lwf' is a method, not a stream. Give a stream; `ctvr streams` lists them."),
    ("check-method clip4clip shapes-5", "'shapes-5' is not a setting. Write name=value, for example"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_name_in_the_wrong_place_is_called_what_it_is(capsys, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = ctvr(capsys, *line.split())
    assert (status, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []
