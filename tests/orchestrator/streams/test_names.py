"""A name of a stream that cannot be loaded is refused in one line, before anything is rendered."""

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.drift import LEAST
from ctvr.orchestrator.streams.load import load_stream

REFUSED = [  # the name, the unknown part of it, what is said of it
    ("shapes-images_blurry20", "", "needs several tasks of videos with captions. Omit _blurry20."),
    ("shapes-qa_blurry20", "", "needs several tasks of videos with captions. Omit _blurry20."),
    ("shapes-7_blurry20", "shapes-7", "Did you mean 'shapes-5'?"),
    ("shapes-images_chunks4", "", "needs videos with captions. Omit _chunks4."),
    ("shapes-qa_chunks4", "", "needs videos with captions. Omit _chunks4."),
    ("shapes-7_chunks20", "shapes-7", "Did you mean 'shapes-5'?"),
    ("shapes-5_chunks999", "", "Use 5 to 320 chunks."),
    *((f"shapes-5_drift{longest}", "", "Write shapes-5_drift64.") for longest in (0, LEAST - 1, 65)),
    ("shapes-qa_drift48", "", "needs videos with captions. Omit _drift48."),
    ("shapes-5_conflict0", "shapes-5_conflict0", ""),
    ("worlds-5_conflikt0", "", "'conflikt0' of worlds-5_conflikt0 is not a dial with a value. Did you mean 'conflict'"),
    ("worlds-5_conflict", "", "is not a dial"),
    ("worlds-5_conflict2", "", "conflict must be between 0 and 1, got 2.0"),
    ("worlds-5_pairs9.5", "", "pairs"),
    ("worlds-7", "worlds-7", "worlds-5"),
    ("worlds-quick_conflict0", "worlds-quick_conflict0", ""),
    ("msrvtt-10", "msrvtt-10", "`ctvr streams import --help`"),
    ("my.csv", "", "is a table of captions. Import it first: ctvr streams import csv my.csv "),
]


@pytest.mark.parametrize(("name", "unknown", "said"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_a_wrong_name_is_refused_before_anything_is_rendered(tmp_path, monkeypatch, name, unknown, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").touch()
    with pytest.raises(ConfigError) as error:
        load_stream(name, tmp_path / "runs")
    assert error.value.described.startswith("stream: ")
    assert error.value.unknown == unknown
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["my.csv"]
