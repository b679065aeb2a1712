"""Names of videos may contain any character, also one that the terminal or locale cannot print."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ctvr.orchestrator.console import escape_unknown_characters
from ctvr.orchestrator.interpreter import child_environment, run_module

TABLE = "video,caption,category,task,split\n\u4e2d\u6587,a cat,cat,1,train\ncaf\u00e9,a dog,dog,1,test\n"
LOCALES = [
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
]


def ctvr(folder: Path, locale: dict[str, str], *words: str) -> str:
    """Return the output of a command under a locale; the command must succeed."""
    others = ("LC_", "LANG", "PYTHONIO")
    kept = {name: value for name, value in child_environment().items() if not name.startswith(others)}
    command = [*run_module("ctvr", *words), "--runs", str(folder / "runs")]
    done = subprocess.run(command, env={**kept, **locale}, cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode("latin-1")


@pytest.mark.parametrize("locale", LOCALES)
def test_chinese_video_name_works_in_every_locale(tmp_path, locale):
    (tmp_path / "table.csv").write_text(TABLE, encoding="utf-8")
    videos = tmp_path / "\u89c6\u9891"
    videos.mkdir()
    (videos / "caf\u00e9.mp4").write_bytes(b"frames")  # a folder without any video of the table is refused
    said = ctvr(tmp_path, locale, "streams", "import", "csv", "table.csv", "--name", "zh", "--videos", str(videos))
    assert "\\u4e2d\\u6587" in said  # it is missing, and named
    manifest = json.loads((tmp_path / "runs" / "streams" / "zh.json").read_text(encoding="utf-8"))
    assert [item["video"] for item in manifest["tasks"][0]["train"]] == ["\u4e2d\u6587"]
    for name in ("\u4e2d\u6587", "caf\u00e9"):
        (videos / f"{name}.mp4").write_bytes(b"frames")
    assert "missing" not in ctvr(tmp_path, locale, "streams", "check", "zh")


@pytest.mark.parametrize(
    ("encoding", "errors", "written"),
    [
        ("latin-1", "strict", b"\\u4e2d"),
        ("ascii", "surrogateescape", b"\\u4e2d"),
        ("ascii", "replace", b"?"),
        ("utf-8", "strict", "\u4e2d".encode()),
    ],
)
def test_a_stream_writes_what_its_encoding_lacks_as_escapes(monkeypatch, encoding, errors, written):
    below = io.BytesIO()
    stream = io.TextIOWrapper(below, encoding=encoding, errors=errors)
    monkeypatch.setattr(sys, "stdout", stream)
    escape_unknown_characters()
    stream.write("\u4e2d")
    stream.flush()
    assert below.getvalue() == written
