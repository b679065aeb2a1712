"""A name of a stream that cannot be loaded is refused in one line, before anything is rendered."""

import pytest

from ctvr.orchestrator.streams.drift import LEAST
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses

REFUSED = [  # the name, the unknown part of it, what is said of it
    ("shapes-images_blurry20", "", "_blurry20"),
    ("shapes-qa_blurry20", "", "_blurry20"),
    ("shapes-7_blurry20", "shapes-7", "'shapes-5'"),
    ("shapes-images_chunks4", "", "_chunks4"),
    ("shapes-qa_chunks4", "", "_chunks4"),
    ("shapes-7_chunks20", "shapes-7", "'shapes-5'"),
    ("shapes-5_chunks999", "", "5 320"),
    *((f"shapes-5_drift{longest}", "", "shapes-5_drift64") for longest in (0, LEAST - 1, 65)),
    ("shapes-qa_drift48", "", "_drift48"),
    ("shapes-5_conflict0", "shapes-5_conflict0", ""),
    ("worlds-5_conflikt0", "", "'conflikt0' worlds-5_conflikt0 'conflict'"),
    ("worlds-5_conflict", "", ""),
    ("worlds-5_conflict2", "", "0 1 2.0"),
    ("worlds-5_pairs9.5", "", ""),
    ("worlds-7", "worlds-7", "worlds-5"),
    ("worlds-quick_conflict0", "worlds-quick_conflict0", ""),
    ("msrvtt-10", "msrvtt-10", "`ctvr --help`"),
    ("my.csv", "", "my.csv"),
]


@pytest.mark.parametrize(("name", "unknown", "values"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_a_wrong_name_is_refused_before_anything_is_rendered(tmp_path, monkeypatch, name, unknown, values):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").touch()
    with refuses("stream", *values.split(), unknown=unknown):
        load_stream(name, tmp_path / "runs")
    assert [path.name for path in tmp_path.iterdir()] == ["my.csv"]
