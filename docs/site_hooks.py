"""For mkdocs: adds the pages of the root of the repository and the generated ones, and makes links lead to them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README", "RESULTS", "REPRODUCIBILITY", "CONTRIBUTING", "CHANGELOG")


def on_files(files: Files, config: Any) -> Files:
    """Add them; README is the first screen of the repository, and index.md that of the site."""
    sys.path.insert(0, str(ROOT))  # tools/ is not installed
    from tools.reference_pages import pages

    root = {f"{name.lower()}.md": (ROOT / f"{name}.md").read_text(encoding="utf-8") for name in PAGES[1:]}
    for name, text in {**root, **pages()}.items():
        files.append(File.generated(config, name, content=text))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    return files


def notebook_page(path: Path) -> str:
    """A notebook as Markdown, with what its cells said when it was executed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            said = "".join(output.get("text") or output["data"]["text/plain"])
            parts.append(f"```text\n{said.rstrip()}\n```")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Any, **given: Any) -> str:
    """A link of the repository as one of the site; what is no page there is named without a link."""
    up = "../" * page.file.src_uri.count("/")

    def moved(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path, hash_, anchor = target.removeprefix("../").partition("#")
        if path.removesuffix(".md") in PAGES:
            return f"[{text}]({up}{'index' if path == 'README.md' else path.lower()[:-3]}.md{hash_}{anchor})"
        if target.startswith("docs/"):  # of a page of the root
            return f"[{text}]({target.removeprefix('docs/')})"
        return match[0] if path.endswith(".md") or ":" in path or not path else text

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", moved, markdown)
