"""The contact sheet of a search is one file that needs nothing else."""

from __future__ import annotations

import re

import pytest

from orchestrator.errors import ConfigError
from orchestrator.jobs.deployment import Deployment
from orchestrator.jobs.page import page
from orchestrator.jobs.search import search
from orchestrator.pages.html import write_page
from orchestrator.pages.sheet import contact_sheet
from orchestrator.retrieval.model import Hit


def test_a_sheet_shows_every_hit_and_reaches_for_no_network(learned, tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    videos = sorted((learned / "small" / "videos").glob("*.mp4"))[:2]
    hits = [
        Hit(n, 0.5, path.stem, str(path), None, "task_01", ("a <b>red</b> star",)) for n, path in enumerate(videos, 1)
    ]
    hits.append(Hit(3, 0.1, "broken", str(tmp_path / "broken.mp4")))
    text = write_page(tmp_path / "new" / "sheet.html", contact_sheet([("a 'red' <star>", hits)], "m")).read_text()
    assert text.count('src="data:image/jpeg;base64,') == 2
    assert "no picture: " in text
    assert "a &#x27;red&#x27; &lt;star&gt;" in text
    assert "<b>red</b>" not in text
    assert not re.search(r"https?://|<script|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport" content="width=device-width' in text


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_looked_up(tmp_path):
    (tmp_path / "file").write_text("")
    where = Deployment(runs=tmp_path / "none")
    for html, reason in (
        (tmp_path, "it is a folder"),
        (tmp_path / "file" / "a.html", "file takes no files"),
        (tmp_path / "file" / "new" / "a.html", "file takes no files"),
    ):
        for work in (lambda: page("no-such", where, html), lambda: search(["a"], "no-such", where, html=html)):  # noqa: B023
            with pytest.raises(ConfigError, match=rf"the page cannot be written \(.*{reason}\)"):
                work()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
