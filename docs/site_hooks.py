"""mkdocs hooks: add the pages outside docs/ and the generated ones, and adapt links to their places on the site."""

from __future__ import annotations

import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README", "RESULTS", "REPRODUCIBILITY", "CONTRIBUTING", "CHANGELOG")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root (README is not one: the site begins with index.md), of results/ and of notebooks/."""
    sys.path.insert(0, str(ROOT))  # tools/ is not installed
    from tools.reference_pages import pages

    for name, text in {**texts_outside_docs(), **pages()}.items():
        files.append(File.generated(config, name, content=text))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    return files


def texts_outside_docs() -> dict[str, str]:
    """Map a page of the site to the text of its file in the root of the repository or in results/."""
    files = [ROOT / f"{name}.md" for name in PAGES[1:]] + sorted((ROOT / "results").glob("*.md"))
    return {site_page(path.relative_to(ROOT).as_posix()): path.read_text(encoding="utf-8") for path in files}


def site_page(path: str) -> str:
    """Return the place on the site of a file of the repository; nothing if the site does not contain it."""
    if path.removesuffix(".md") in PAGES:
        return "index.md" if path == "README.md" else path.lower()
    if path.startswith("docs/"):
        return path.removeprefix("docs/") if path.endswith((".md", ".png")) else ""
    return path if path.startswith("results/") else ""


def notebook_page(path: Path) -> str:
    """Convert a notebook to Markdown, with the stored outputs of its cells."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text")})
            said = "".join(data["text/plain"])
            if "image/png" in data:
                said = f"![{said}](data:image/png;base64,{data['image/png']})"
            else:
                said = "".join(data.get("text/html") or f"```text\n{said.rstrip()}\n```")
            parts.append(said)
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Any, **given: Any) -> str:
    """Point each link of the repository to its page of the site; leave the text alone where there is no such page."""
    return site_links(markdown, page.file.src_uri)


def site_links(markdown: str, page: str) -> str:
    """Change the links of a page, which is named by its place on the site."""
    upper = page.removesuffix(".md").upper()
    if upper in PAGES:
        folder = ""
    else:
        folder = posixpath.dirname(page if page.startswith("results/") else f"docs/{page}")

    def moved(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path, hash_, anchor = target.partition("#")
        if ":" in path or not path:
            return match[0]
        place = site_page(posixpath.normpath(posixpath.join(folder, path)))
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{hash_}{anchor})" if place else text

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", moved, markdown)
