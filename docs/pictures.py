"""Pictures of pages: `python docs/pictures.py RUNS` writes report.png, search.png and serve.png of docs/.

RUNS is the runs folder of `ctvr demo`. Needs Playwright (`pip install playwright`) and Debian's Chromium.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

QUERY = "a large orange cell splits into two pieces over a red triangle"
PORT, SIZE = 8011, {"width": 720, "height": 640}
BROWSER = "/usr/lib/chromium/chromium-headless-shell"


def main(runs: Path) -> None:
    address, model = f"http://127.0.0.1:{PORT}", ["--model", "clip4clip", "--runs", str(runs)]
    service = subprocess.Popen(["ctvr", "serve", *model, "--port", str(PORT)])
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(["ctvr", "search", QUERY, *model, "--html", f"{folder}/search.html"], check=True)
            _await(f"{address}/health")
            _shoot(
                report=(runs / "pages" / "shapes-5.html").resolve().as_uri(),
                search=Path(folder, "search.html").as_uri(),
                serve=f"{address}/?q={urllib.parse.quote(QUERY)}",
            )
        finally:
            service.terminate()


def _await(address: str) -> None:
    for _ in range(300):
        try:
            return urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(1)
    sys.exit(f"{address} does not answer")


def _shoot(**pages: str) -> None:
    with sync_playwright() as started:
        page = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"]).new_page(viewport=SIZE)
        for name, address in pages.items():
            page.goto(address, wait_until="networkidle")
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256)
            picture.save(Path(__file__).with_name(f"{name}.png"), optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
