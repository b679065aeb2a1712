"""The contact sheet of a search is one self-contained file."""

import re

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.query import run_query
from ctvr.orchestrator.jobs.report import make_report
from ctvr.orchestrator.pages.contact_sheet import contact_sheet
from ctvr.orchestrator.pages.html import write_page
from ctvr.orchestrator.pages.search_page import search_page
from ctvr.orchestrator.retrieval.hits import Hit
from ctvr.orchestrator.video.thumbnails import FRAMES
from tests.refusing import refuses


def test_a_sheet_shows_every_hit_and_reaches_for_no_network(learned, tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    videos = sorted((learned / "small" / "videos").glob("*.mp4"))[:2]
    hits = [
        Hit(n, 0.5, path.stem, str(path), None, "task_01", ("a <b>red</b> star",)) for n, path in enumerate(videos, 1)
    ]
    hits.append(Hit(3, 0.1, "broken", str(tmp_path / "broken.mp4")))
    text = write_page(tmp_path / "new" / "sheet.html", contact_sheet([("a 'red' <star>", hits)], "m")).read_text()
    assert text.count('src="data:image/jpeg;base64,') == 2
    times = re.findall(r"<span>([\d.]+) s</span>", text)
    assert len(times) == 2 * FRAMES
    assert times[:FRAMES] == sorted(times[:FRAMES], key=float)
    assert 'type="checkbox" aria-label="play: a &lt;b&gt;red' in text
    assert "no picture: " in text
    assert "a &#x27;red&#x27; &lt;star&gt;" in text
    assert "<b>red</b>" not in text
    assert not re.search(r"https?://|<script|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport" content="width=device-width' in text


def test_hits_of_features_show_ids_and_captions_and_no_broken_picture():
    hits = [Hit(n, 0.5, f"v<{n}>", "", None, "task_01", (f"caption {n}",)) for n in (1, 2)]
    sheet = contact_sheet([("a star", hits)], "m")
    served = search_page("a star", 10, [(hit, "") for hit in hits], "m", 2, 100, 100)
    for text in (sheet, served):
        assert "<img" not in text
        assert "no picture" not in text
        assert "--videos" in text  # the option that shows them
        assert all(f"v&lt;{n}&gt;" in text and f"caption {n}" in text for n in (1, 2))


def test_unwritable_page_is_refused_first(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    execution = ExecutionConfig(runs=tmp_path / "none")
    for html, reason in (
        (tmp_path / "folder.html", "it is a folder"),
        (tmp_path / "file" / "a.html", "file cannot contain files"),
        (tmp_path / "file" / "new" / "a.html", "file cannot contain files"),
    ):
        with refuses(html, *reason.split()):
            make_report("no-such", execution, html)
        with refuses(html, *reason.split()):
            run_query(["a"], "no-such", execution, html=html)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.html"]
