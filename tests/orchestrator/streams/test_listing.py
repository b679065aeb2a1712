"""The list of `ctvr streams` has a line for each stream that can be named."""

import json
from pathlib import Path

from ctvr.orchestrator.streams.listing import streams_text
from ctvr.orchestrator.streams.load import BENCHMARKS, available_streams


def test_each_stream_is_one_line_also_if_its_manifest_is_damaged(tmp_path: Path) -> None:
    for name, content in (("holiday", json.dumps({"tasks": [{}, {}]})), ("damaged", "{"), ("cvlm", "[]")):
        (tmp_path / "streams").mkdir(exist_ok=True)
        (tmp_path / "streams" / f"{name}.json").write_text(content)
    listed, _, benchmarks = streams_text(tmp_path).partition("\n\n")
    lines = dict(line.split(maxsplit=1) for line in listed.splitlines())
    assert list(lines) == available_streams(tmp_path)
    assert "2 tasks" in lines["holiday"]
    assert all(f"ctvr streams check {name}" in lines[name] for name in ("damaged", "cvlm"))
    assert [name for name in BENCHMARKS if f" {name}" in benchmarks] == [name for name in BENCHMARKS if name != "cvlm"]
