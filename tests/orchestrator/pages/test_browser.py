"""Pages in a real browser, headless: light and dark, as wide as a phone, without a network. Skipped where none is."""

import json
import re
import shutil
import subprocess

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.report import make_report
from ctvr.orchestrator.pages.contact_sheet import contact_sheet
from ctvr.orchestrator.pages.html import write_page
from ctvr.orchestrator.pages.report import report
from ctvr.orchestrator.retrieval.model import Hit
from ctvr.orchestrator.tables.table import Column, Row, Table, Value

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for found in map(shutil.which, NAMES) if found), None)
TOLD = """<script>const style = getComputedStyle(document.body), told = document.createElement("pre");
told.textContent = JSON.stringify({width: innerWidth, needed: document.documentElement.scrollWidth,
  cut: [...document.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth).length,
  columns: [...document.querySelectorAll("th")].filter(head => head.offsetParent).map(head => head.textContent),
  ink: style.color, paper: style.backgroundColor, fetched: performance.getEntriesByType("resource").map(e => e.name)
    .filter(name => !name.startsWith("data:")), broken: [...document.images].filter(i => !i.naturalWidth).length});
told.id = "told"; document.body.append(told)</script>"""


def looked_at(file, folder, is_dark=False, width=390, before=""):
    """Return the messages of a browser for a page; the screenshot is stored next to it. `before`: a script."""
    shown = folder / f"{file.stem}-{width}-{'dark' if is_dark else 'light'}.html"
    text = file.read_text(encoding="utf-8").replace("</body>", f"<script>{before}</script>{TOLD}</body>")
    shown.write_text(text, encoding="utf-8")
    words = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},1800", "--hide-scrollbars"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}"),
        *(f"--blink-settings=preferredColorScheme={0 if is_dark else 1}", "--virtual-time-budget=2000"),
        *(f"--screenshot={shown.with_suffix('.png')}", "--dump-dom", shown.as_uri()),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(re.search(r'<pre id="told">(.*?)</pre>', done.stdout)[1])


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium-headless-shell")
def test_pages_fit_a_phone_light_and_dark_and_fetch_nothing(learned, tmp_path):
    make_report("small", ExecutionConfig(runs=learned), tmp_path / "page.html")
    videos = sorted((learned / "small" / "videos").glob("*.mp4"))[:3]
    hits = [Hit(n, 0.5, path.stem, str(path), None, "task_01", ("a star",)) for n, path in enumerate(videos, 1)]
    write_page(tmp_path / "sheet.html", contact_sheet([("a red star moves left", hits)], "zero_shot on small"))
    for name in ("page", "sheet"):
        light, dark = (looked_at(tmp_path / f"{name}.html", tmp_path, is_dark) for is_dark in (False, True))
        assert light["needed"] <= light["width"] == 390, f"{name}: it is wider than a phone"
        assert (light["paper"], dark["paper"]) == ("rgb(255, 255, 255)", "rgb(13, 17, 23)")
        assert (light["ink"], dark["ink"]) == ("rgb(31, 35, 40)", "rgb(230, 237, 243)")
        for told in (light, dark):
            assert told["fetched"] == []
            assert told["broken"] == 0


def wide_table() -> Table:
    """A table as a sweep's: long names, every column, curves."""
    columns = (*(Column(key, title, "up") for key, title in (("r1", "R@1"), ("r5", "R@5"), ("r10", "R@10"))),
               Column("medr", "MedR", "down"), Column("meanr", "MeanR", "down"), Column("bwf", "BWF", "down"),
               Column("params_m", "Params (M)"))  # fmt: skip
    label = "framefusion_moe (evaluation.split=val, method.beta=0.6, method.num_experts=10, method.rank=16)"
    values = {column.key: Value(28.89, 1.73) for column in columns}
    rows = [
        Row(f"{label} {n}", "framefusion_moe", values, curve=((1, 30.0, 0.0), (2, 20.0 + n, 0.0))) for n in range(3)
    ]
    return Table("shapes-5", columns, tuple(rows))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium-headless-shell")
def test_a_table_of_long_names_fits_a_screen_and_a_phone_shows_the_rest_on_demand(tmp_path):
    file = tmp_path / "wide.html"
    write_page(file, report("monday", [("Question", "which?")], [wide_table()], [], []))
    desktop = looked_at(file, tmp_path, width=1280)
    assert (desktop["cut"], desktop["needed"]) == (0, 1280)
    every = ["Method", "R@1 ↑", "R@5 ↑", "R@10 ↑", "MedR ↓", "MeanR ↓", "BWF ↓", "Params (M)", "Seeds"]
    assert desktop["columns"] == every
    phone = looked_at(file, tmp_path)
    assert (phone["cut"], phone["needed"]) == (0, 390)
    assert phone["columns"] == ["Method", "R@1 ↑", "BWF ↓", "Seeds"]
    asked = looked_at(file, tmp_path, before='document.querySelector(".all input").click()')
    assert asked["columns"] == every
