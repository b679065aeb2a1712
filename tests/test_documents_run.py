"""Commands and Python of README and docs, and notebooks, are run; each of the other commands says why it is not.

They run as printed, in one process, on a stream of a few videos that replaces the embedded ones.
"""

import copy
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.streams import load
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.manifest import parse_manifest
from tests.own_towers import write_clip, write_package
from tests.small_stream import write_stream
from tests.test_commands import DOCUMENTS, ROOT, blocks_of, commands_of, lines_of

_spec = importlib.util.spec_from_file_location("execute", ROOT / "notebooks" / "execute.py")
notebooks: Any = importlib.util.module_from_spec(_spec)  # type: ignore[arg-type]
_spec.loader.exec_module(notebooks)  # type: ignore[union-attr]
FIRST = ("docs/tutorial.md", "README.md", "docs/usage.md", "docs/python.md")  # the others need their runs
WHY_NOT = {
    "make .*": "a target of make; those that check or build have jobs of their own in CI",
    r"ctvr sweep( .*)?|ctvr rerun( .*)?|python orchestrator/sweep.py": "Ray: tests/orchestrator/on_ray",
    r"ctvr reproduce (ITEM|\w+/[\w-]+)( --(name|stream) .*)?": "Ray, and a table of hours",
    "ctvr reproduce claims( --(only|seeds|stream) .*)?": "Ray, and hours: tests/orchestrator/sweeps/test_claims.py",
    "ctvr table (--sweep .*|NAME-final-.*)": "a finished rerun, which takes Ray: tests/orchestrator/on_ray",
    "ctvr cache build .*": "decodes a benchmark, or on a cluster: tests/orchestrator/jobs/test_cache.py",
    "ctvr runs attach.*|python cluster/.*": "a cluster: tests/cluster",
    "ctvr run clip4clip msrvtt-10 .*": "a benchmark's videos",
    "ctvr run .* seed=[12]": "the same as seed 0",
    "ctvr streams import (msrvtt(-qa)?|actnet|cvlm|cifar-10|tiny-imagenet) .*": "its own files: importers' tests",
    "ctvr streams check NAME --features FOLDER": "canaries of an embedder: tests/orchestrator/vectors",
    "ctvr streams (import features .* features=features .*|check mine --features features)": "features of a script: "
    "tests/orchestrator/exporters",
    "ctvr (search|streams import features) .*@main .*|ctvr streams (export mine|import features FOLDER) .*": "the Hub: "
    "tests/orchestrator/data/test_hub_repository.py",
    "ctvr search TEXT --model head_linear": "a card's text tower: tests/orchestrator/retrieval",
    "ctvr streams check msrvtt-10": "a benchmark's stream, imported from its own files",
    ".*backbone.weights=openai|ctvr cache weights .*": "downloads weights",
    "python -m tools.real_(pairs|vectors) .*": "public repositories and weights that are not here: tests/tools",
    "python docs/typed_queries.py .*": "three trained models of the whole embedded stream",
    "ctvr streams export .* --form h5": "h5py",
    "ctvr cache gc --losers (NAME|SWEEP --yes)": "a finished sweep: tests/orchestrator/jobs/test_cache.py",
    r".* upgrade\.task=.*": "more tasks and videos: tests/orchestrator/learning/run/test_upgrade*.py",
    "ctvr methods --cost --tasks 100": "half a minute: tests/orchestrator/catalog/test_growth.py",
    "ctvr (ui|serve( .*)?)": "a server that stays until it is stopped",
    "ctvr plot (merges|gates|scores|drift) .*": "runs of their own: tests/orchestrator/jobs/test_plot.py",
    "ctvr (run|search|table|report|plot|reproduce|migrate)": "a sentence names the command",
    "ctvr (methods check|runs (explain|sync|verify FILE|compare A B)( --rebuild)?)": "a sentence names the action",
    r"ctvr runs (publish|verify) .* --sign(ers)? .*": "a key of SSH: tests/orchestrator/jobs/test_publish.py",
}
FILLED = {
    "FILE": "clip.mp4",
    "NAME": "lwf",
    "PRESET": "original",
    "ITEM": "framefusion/fig8",
    "COMMAND": "search",
    "VIDEO": "videos",
    "METHOD": "clip4clip",
    "precision=P": "precision=fp32",
    "seed=S": "seed=1",
}
FILLED_IN = {
    "ctvr methods --backbone NAME": "bag",
    "ctvr streams check NAME": "mine",
    "ctvr streams export-script NAME": "open-clip",
    "ctvr doctor --stream NAME": "mine",
    "ctvr report NAME": "shapes-5",
    "ctvr report NAME --figures slides": "shapes-5",
    "ctvr table NAME": "shapes-5",
    "ctvr table NAME --figures": "shapes-5",
    "ctvr table NAME --pairs": "shapes-5",
    "ctvr table NAME --columns stream/t2v/rsum,cost/seconds_task": "shapes-5",
}


def typed(line: str) -> Iterator[list[str]]:
    """Return our commands of a line, and `cd`."""
    for words in commands_of(line):
        if words[0] in ("ctvr", "make", "cd", "python"):
            yield words


def why_not(text: str) -> str:
    return next((why for pattern, why in WHY_NOT.items() if re.fullmatch(pattern, text)), "")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the reader's folder: files that the documents assume, and a small stream under the names of the embedded
    ones.
    """
    home = tmp_path_factory.mktemp("reader")
    manifest = read_json(write_stream(home / "runs" / "small", num_tasks=2, train=2, searched=1))
    shutil.copytree(home / "runs" / "small" / "videos", home / "videos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("HOME", str(home))
        patch.syspath_prepend(str(home))
        embedded = lambda name, root, render: parse_manifest({**manifest, "name": name}, name, home / "runs" / "small")
        patch.setattr(load, "_load_rendered", embedded)
        patch.setattr(ray, "init", lambda *given, **named: pytest.fail("it runs Ray for hours: add it to WHY_NOT"))
        rows = [
            [item["path"], caption, item["category"], split, str(number), f"2026-{number:02d}-01"]
            for number, task in enumerate(manifest["tasks"], 1)
            for split in ("train", "val", "test")
            for item in task[split]
            for caption in item["captions"]
        ]
        lines = [",".join(row) for row in [["video", "caption", "category", "split", "task", "time"], *rows]]
        Path("my.csv").write_text("\n".join(lines))
        Path("my.yaml").write_text("method: clip4clip\nstream: shapes-5\n")
        Path("tiny.yaml").write_text(blocks_of(ROOT / "docs/tutorial.md", "yaml")[0])
        Path("my_method.py").write_text(blocks_of(ROOT / "docs/new-method.md", "python")[0])
        Path("own_loss.py").write_text(blocks_of(ROOT / "docs/own-loss.md", "python")[0])
        Path("share.py").write_text(blocks_of(ROOT / "docs/metrics.md", "python")[0])
        Path("films.yaml").write_text(blocks_of(ROOT / "docs/thesis.md", "yaml")[0])
        write_package(home, blocks_of(ROOT / "docs/backbones.md", "python")[0], "my_towers", bag="Bag")
        write_clip(home / "my-clip")
        shutil.copy(next(Path("videos").glob("*.mp4")), "clip.mp4")
        np.savez("videos.npz", **{row[0]: np.ones((2, 8)) for row in rows})
        vectors = np.random.default_rng(0).standard_normal((60, 8))
        for name in ("old", "new"):
            np.savez(f"{name}.npz", **{str(row): vector for row, vector in enumerate(vectors)})
        np.save("queries.npy", vectors)
        np.save("captions.npy", np.ones((len(rows), 8)))
        yield home


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of a command that is run as typed; empty if it succeeds."""
    if "KEY" in words:
        trained = ExecutionConfig(runs=Path("runs")).existing_tracker().find_runs(tags={"ctvr.complete": "true"})
        words = [trained[0].tags["ctvr.result"] if word == "KEY" else word for word in words]
    given = FILLED_IN.get(" ".join(words))
    filled = [given if given and word == "NAME" else FILLED.get(word, word) for word in words[1:]]
    try:
        status: object = main([os.path.expanduser(word) if word.startswith("~") else word for word in filled])
    except SystemExit as ended:  # --help
        status = ended.code
    said = capsys.readouterr()
    return "" if status == 0 else f"{shlex.join(words)}: {status}: {said.err.strip()[-300:]}"


def run_python(document: Path) -> None:
    for block in blocks_of(document, "python"):
        exec(block, {})


@pytest.mark.slow
def test_every_command_of_the_documents_runs_or_has_a_reason(place, monkeypatch, capsys):
    order = [ROOT / name for name in FIRST]
    failed, seen, used = [], set[str](), set[str]()
    for document in [*order, *(each for each in DOCUMENTS if each not in order)]:
        monkeypatch.chdir(place)
        for line in lines_of(document.read_text(encoding="utf-8")):
            for words in typed(line):
                text = " ".join(words)
                if words[0] == "cd":
                    if Path(words[1]).is_dir():
                        monkeypatch.chdir(words[1])
                        monkeypatch.syspath_prepend(str(Path.cwd()))
                elif why := why_not(text):
                    used.add(why)
                elif text not in seen:
                    seen.add(text)
                    if wrong := run(words, capsys):
                        failed.append(f"{document.name}: {wrong}")
        if document.name in ("tutorial.md", "python.md"):
            run_python(document)
    assert not failed, "\n".join(failed)
    assert used == set(WHY_NOT.values()), "a reason that no command has"
    assert len(seen) > 30


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_is_executed_and_keeps_its_outputs_and_no_place(place, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if not each.startswith(str(place))])
    monkeypatch.delitem(sys.modules, "my_idea", raising=False)  # of docs/check-method.md
    kept = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    found = notebooks.execute(copy.deepcopy(kept))
    kinds = [
        [[each["output_type"] for each in cell.get("outputs", ())] for cell in made["cells"]] for made in (kept, found)
    ]
    assert kinds[0] == kinds[1]
    assert not re.search(r"/(work|tmp|home|root|Users)/", json.dumps(kept))
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == set(notebooks.NAMES)
