"""Program that executes a notebook and stores the outputs of its cells: `python notebooks/execute.py first_run`.

It runs in one process without Jupyter: a cell is Python, and a line `!ctvr ...` is one of our commands. The notebook
stores the printed text and the value of the last line of each cell, an image or figure as PNG and an object of ctvr as
HTML, without paths of this machine. Run it in an empty folder, into which it writes the streams and runs.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.figures.figures import to_bytes

HERE = Path(__file__).resolve().parent
NAMES = ("first_run", "rows_and_table", "own_method", "features", "vector_index")


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with the outputs of its cells.

    Raises:
        Exception: any exception that a cell raises.
    """
    names: dict[str, Any] = {"__name__": "notebook", "_command": _command}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        cell["execution_count"], cell["outputs"] = count, _outputs("".join(cell["source"]), names, count)
    return notebook


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    lines = [f"_command({line[6:]!r})" if line.startswith("!ctvr ") else line for line in source.splitlines()]
    tree = ast.parse("\n".join(lines))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(tree, "notebook", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names) if last else None
    found: list[dict[str, Any]] = []
    if text := said.getvalue().replace(f"{Path.cwd()}/", ""):
        found.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if isinstance(value, Figure):
            data |= {"image/png": base64.b64encode(to_bytes(value, "png")).decode()}
        if isinstance(value, Image.Image):
            data |= {"text/plain": f"<image of {value.width} x {value.height} pixels>", "image/png": _png(value)}
        if type(value).__module__.startswith("ctvr."):
            data |= {"text/html": value._repr_html_().splitlines(keepends=True)}
        found.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return found


def _png(picture: Image.Image) -> str:
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def _command(words: str) -> None:
    if status := main(shlex.split(words, comments=True)):
        raise SystemExit(f"ctvr {words}: exit status {status}")


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        path = HERE / f"{name}.ipynb"
        made = execute(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
