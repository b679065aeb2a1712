"""List of streams for `ctvr streams`: one line each."""

from __future__ import annotations

from pathlib import Path

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.load import BENCHMARKS, RENDERED, available_streams, plugins

ABOUT = {
    "shapes-cvlm": "five small data sets, one after the other",
    "shapes-images": "images of ten classes, for methods of unsupervised learning",
    "shapes-qa": "questions about the videos of shapes-5, with answers of one word",
    "worlds-quick": "worlds-5 with fewer training videos, the default of ctvr sweep",
}


def streams_text(root: Path) -> str:
    """Return a line for each stream that a command can name, and the benchmarks that must be imported first.

    Args:
        root: the runs folder, with the imported streams.
    """
    names = available_streams(root)
    width = max(map(len, names))
    lines = [f"{name:<{width}}  {_about(name, root)}" for name in names]
    missing = ", ".join(name for name in BENCHMARKS if name not in names)
    return "\n".join([*lines, "", f"Import first (ctvr streams import --help): {missing}"] if missing else lines)


def _about(name: str, root: Path) -> str:
    if name in RENDERED:
        tasks = f"{RENDERED[name]} tasks: " if RENDERED[name] else ""
        what = "moving shapes of 20 categories" if name.startswith("shapes") else "domains whose words conflict"
        return f"embedded; {tasks}{ABOUT.get(name, what)}"
    file = root / "streams" / f"{name}.json"
    if not file.is_file():
        return f"of another package: {plugins()[name].value}"
    try:
        return f"imported; {len(read_json(file)['tasks'])} tasks"
    except (ConfigError, KeyError, TypeError):
        return f"imported, but {file} is not a manifest. Run: ctvr streams check {name}"
