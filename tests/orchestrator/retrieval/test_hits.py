"""Hits are lines in a terminal and strips of frames in a notebook."""

from ctvr.orchestrator.retrieval.hits import Hit, Hits


def test_hits_are_a_line_each_in_a_terminal_and_a_strip_each_in_a_notebook(learned, tmp_path):
    videos = sorted((learned / "small" / "videos").glob("*.mp4"))[:2]
    hits = Hits(Hit(n, 0.5, path.stem, str(path), captions=("a <red> star",)) for n, path in enumerate(videos, 1))
    hits.append(Hit(3, 0.25, "features only", ""))
    lines = repr(hits).splitlines()
    assert lines[0] == f"1. 0.500 {videos[0].stem}: a <red> star"
    assert lines[2] == "3. 0.250 features only"
    drawn = hits._repr_html_()
    assert drawn.count('src="data:image/jpeg;base64,') == 2
    assert drawn.count("<figcaption>") == 3
    assert "<red>" not in drawn


def test_no_hits_are_said_so():
    assert repr(Hits()) == "no videos"
