"""Every page in Debian's Chromium: axe-core, a desktop, a phone, dark mode, print, the keyboard, no network.

`make test-browser` installs Playwright and axe-core and keeps screenshots; without them these tests are skipped.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.jobs.report import make_report
from ctvr.orchestrator.pages.contact_sheet import contact_sheet
from ctvr.orchestrator.pages.forgetting import LostQuery, ModelHistory
from ctvr.orchestrator.pages.html import write_page
from ctvr.orchestrator.pages.report import report
from ctvr.orchestrator.pages.search_space import SearchedSetting, SearchedSpace, Trial
from ctvr.orchestrator.retrieval.hits import Hit
from ctvr.orchestrator.serving.snapshot import Snapshot
from ctvr.orchestrator.streams.stream import Item
from ctvr.orchestrator.tables.table import Column, Row, Table, Value
from tests.orchestrator.serving.client import served

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright here: make test-browser")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core here: make test-browser")

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for found in map(shutil.which, NAMES) if found), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium-headless-shell"),
]
PAGES = ("sweep", "stream", "sheet", "form", "found")
VIEWS = {
    "desktop": (1280, "light"),
    "phone": (390, "light"),
    "desktop-dark": (1280, "dark"),
    "phone-dark": (390, "dark"),
}
A4 = 704  # pixels between the margins of html.py
LOOK = """() => {const style = getComputedStyle(document.body); return {
  needed: document.documentElement.scrollWidth, ink: style.color, paper: style.backgroundColor,
  cut: [...document.querySelectorAll(".scroll")]
    .filter(box => box.checkVisibility() && box.scrollWidth > box.clientWidth).length,
  columns: [...document.querySelectorAll("main > .table th")].filter(h => h.offsetParent).map(h => h.textContent),
  broken: [...document.images].filter(i => i.complete && !i.naturalWidth).length}}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])  # root has no sandbox
        yield found
        found.close()


@pytest.fixture(scope="module")
def addresses(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the addresses of PAGES: three files, and the search page of `ctvr serve` before and after a query."""
    folder = tmp_path_factory.mktemp("pages")
    videos = sorted((learned / "small" / "videos").glob("*.mp4"))[:3]
    hits = [Hit(n, 0.5, path.stem, str(path), None, "task_01", ("a star",)) for n, path in enumerate(videos, 1)]
    write_page(folder / "sheet.html", contact_sheet([("a red star moves left", hits)], "zero_shot on small"))
    make_report("small", ExecutionConfig(runs=learned), folder / "stream.html")
    write_page(folder / "sweep.html", sweep_page(videos))
    files = {name: (folder / f"{name}.html").as_uri() for name in PAGES[:3]}
    snapshot = Snapshot(load("zero_shot", ExecutionConfig(runs=learned)), "zero_shot on small")
    with served(lambda: snapshot) as client:
        form = f"http://127.0.0.1:{client.port}/"
        yield {**files, "form": form, "found": f"{form}?q=a+red+circle&k=3"}


def sweep_page(videos: list[Path]) -> str:
    """Return a sweep's page with long names, every column, lost queries and stopped trials."""
    columns = (*(Column(key, title, "up") for key, title in (("r1", "R@1"), ("r5", "R@5"), ("r10", "R@10"))),
               Column("medr", "MedR", "down"), Column("meanr", "MeanR", "down"), Column("bwf", "BWF", "down"),
               Column("params_m", "Params (M)"))  # fmt: skip
    label = "framefusion_moe (evaluation.split=val, method.beta=0.6, method.num_experts=10, method.rank=16)"
    values = {column.key: Value(28.89, 1.73) for column in columns}
    rows = [
        Row(f"{label} {n}", "framefusion_moe", values, curve=((1, 30.0, 0.0), (2, 20.0 + n, 0.0)), marks=("a note",))
        for n in range(3)
    ]
    table = Table("shapes-5", columns, tuple(rows))
    items = [Item(path.stem, str(path), None, "red", ("a red star",)) for path in videos]
    lost = (LostQuery("a red star moves left", items[0], 0, 4.0, items[1], 1),)
    settings = (
        SearchedSetting("method.lr_text_first", low=1e-6, high=2e-5, is_log=True),
        SearchedSetting("method.num_experts", ("1", "5", "10", "15", "20")),
        *(SearchedSetting(f"method.setting_{n}", low=0.0, high=0.9) for n in range(8)),
    )
    trials = tuple(
        Trial(str(n), {"method.lr_text_first": f"{n}e-6", "method.num_experts": "10", "method.setting_0": "0.4"},
              10.0 - n, 5 - n, "complete" if n < 3 else "stopped: halving after task 1", n < 3, n == 1,
              tuple((task, 10.0 - n) for task in range(1, 6 - n)))
        for n in range(1, 5)
    )  # fmt: skip
    space = SearchedSpace(settings, trials, "R@1 gain over zero-shot, in points")
    memories = [ModelHistory("framefusion_moe, seed 1", 9, lost, is_open=True), ModelHistory("lwf", 3, (), "gone")]
    return report("monday", [("Question", "which?")], [table], memories, ["one", "two"], space)


@pytest.fixture
def opened(browser, addresses: dict[str, str]) -> Iterator[Callable[..., object]]:
    """Open a page; fail if it fetches anything from elsewhere, or if its console has an error."""
    contexts, wrong = [], []

    def open_page(name: str, width: int = 1280, scheme: str = "light", media: str = "screen"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
        here = ("data:", "file:", addresses["form"])
        page.on("request", lambda request: request.url.startswith(here) or wrong.append(request.url))
        page.goto(addresses[name])
        page.emulate_media(media=media)
        page.wait_for_load_state("networkidle")  # pictures
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def kept(page, name: str) -> None:
    """Store a screenshot as an artifact if `make test-browser` requests it."""
    if folder := os.environ.get("CTVR_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_has_the_schemes_colours_and_no_finding_of_axe(opened, name, view):
    width, scheme = VIEWS[view]
    page = opened(name, width, scheme)
    kept(page, f"{name}-{view}")
    look = page.evaluate(LOOK)
    assert look["needed"] <= width
    assert (look["cut"], look["broken"]) == (0, 0)
    colours = {"light": ("rgb(31, 35, 40)", "rgb(255, 255, 255)"), "dark": ("rgb(230, 237, 243)", "rgb(13, 17, 23)")}
    assert (look["ink"], look["paper"]) == colours[scheme]
    page.evaluate("document.querySelectorAll('details').forEach(fold => {fold.open = true})")
    found = axe.Axe().run(page).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_printed_page_fits_a4(opened, name):
    page = opened(name, A4, media="print")
    kept(page, f"{name}-print")
    look = page.evaluate(LOOK)
    assert (look["needed"], look["cut"], look["broken"]) == (A4, 0, 0)


def test_a_phone_shows_the_main_columns_and_the_rest_on_demand(opened):
    every = ["Method", "R@1 ↑", "R@5 ↑", "R@10 ↑", "MedR ↓", "MeanR ↓", "BWF ↓", "Params (M)", "Seeds"]
    assert opened("sweep").evaluate(LOOK)["columns"] == every
    phone = opened("sweep", 390)
    assert phone.evaluate(LOOK)["columns"] == ["Method", "R@1 ↑", "BWF ↓", "Seeds"]
    phone.locator(".all input").first.check()
    assert phone.evaluate(LOOK)["columns"] == every


def test_a_sweeps_page_opens_at_its_forgotten_queries_and_folds_by_keyboard(opened, addresses):
    page = opened("sweep")
    page.goto(addresses["sweep"] + "#forgotten")
    assert page.evaluate("Math.round(document.getElementById('forgotten').getBoundingClientRect().top)") < 5
    trials = page.get_by_text("all 4 trials")
    trials.focus()
    page.keyboard.press("Enter")
    assert page.get_by_text("stopped: halving after task 1").first.is_visible()
    page.keyboard.press("Tab")  # the box that scrolls
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_the_search_page_is_used_by_keyboard_alone(opened):
    page = opened("form")
    page.keyboard.type("a red circle")  # the field has the focus
    page.keyboard.press("Enter")
    page.wait_for_url("**q=a+red+circle**")
    assert page.get_by_role("heading", level=2).inner_text().startswith("6 best videos for ")
    assert page.get_by_role("listitem").count() == 6


def test_the_space_bar_plays_the_frames_of_a_strip(opened):
    page = opened("sheet")
    page.locator(".strip input").first.focus()
    page.keyboard.press("Space")
    place = "parseInt(getComputedStyle(document.querySelector('.strip img')).objectPosition)"
    seen = set()
    for _ in range(30):
        seen.add(page.evaluate(place))
        page.wait_for_timeout(100)
    assert seen >= {0, 33, 66, 100}
