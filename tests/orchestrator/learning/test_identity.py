"""A run has one key: it changes with what decides the result and with nothing else."""

from __future__ import annotations

from pathlib import Path

import methods
from orchestrator.learning.identity import code_digest
from orchestrator.learning.resolve import resolve

SMALL = {"backbone.name": "tiny-clip", "backbone.weights": "shipped"}


def test_the_key_changes_with_what_decides_and_with_nothing_else(small_stream):
    def key(**more):
        settings = {"method": "clip4clip", "stream": "s", **SMALL}
        return resolve({**settings, **{name.replace("__", "."): v for name, v in more.items()}}).key(small_stream)

    assert key() == key()
    assert key() == key(data__load_threads=2) == key(evaluation__chunk=7)
    assert len({key(), key(seed=1), key(method__lr=2e-6), key(optim__epochs=3), key(evaluation__split="val")}) == 5
    random = {"backbone__weights": "random"}
    assert key() != key(**random)


def test_the_key_reads_every_layer_and_the_files_of_the_method_and_its_base(monkeypatch):
    read = []
    content = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self.name) or content(self))
    code_digest("lwf", "framefusion_moe")
    shared = {
        file.name
        for room in ("backbone", "families", "layers")
        for file in (Path(methods.__file__).parent / room).rglob("*.py")
    }
    assert {"blocks.py", "former_videos.py", "kinds.py", "strategy.py"} <= shared <= set(read)
    assert {"lwf.py", "run.py", "index.py", "base.py", "framefusion_moe.py", "loop.py", "evaluate.py"} <= set(read)
