"""Damaged files give the right result or one line: no traceback, no hang, no file elsewhere, bounded memory.

Another seed: `CTVR_FUZZ_SEED=7 make test-all`; more inputs: `make fuzz COUNT=2000 SEED=7`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctvr.orchestrator.errors import ConfigError
from tests.fuzz.engine import judge
from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("CTVR_FUZZ_SEED", "0"))


@pytest.mark.slow
def test_every_reader_handles_damaged_files() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count=500", f"--seed={SEED}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert [target.name for target in TARGETS if f"{target.name} " not in done.stdout] == []


TEXTS = {"one": "line", "one\ntwo": "many lines", "x" * 5000: "long line"}


@pytest.mark.parametrize(
    ("error", "outcome"), [(KeyError("x"), "traceback"), *((ConfigError(text), kind) for text, kind in TEXTS.items())]
)
def test_tracebacks_and_answers_of_several_lines_are_found(error: Exception, outcome: str) -> None:
    def read(path: Path) -> None:
        raise error

    assert judge(Target("t", lambda folder: "x", read), Path("x"))[0] == outcome  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["write", "hang", "memory", "die"])
def test_the_fuzzer_finds_every_forbidden_act_of_a_reader(way: str, tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from tests.fuzz import engine, files, targets
engine.SECONDS, engine.MEMORY = 1, 64 << 20
def read(path):
    if path.is_symlink() or not path.is_file() or path.read_bytes() == b"x":
        return
    way = {way!r}
    if way == "write": Path(os.path.join(os.getcwd(), "..", "..", "stranger")).write_text("x")
    if way == "hang": time.sleep(90)
    if way == "memory": bytearray(200 << 20)
    if way == "die": os.kill(os.getpid(), 11)
engine.TARGETS = (targets.Target("t", files.make_file("x", lambda: b"x"), read),)
print(engine.fuzz(Path({str(tmp_path)!r}) / "f", 0, 9))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    wanted = {"write": "written outside", "hang": "hang", "memory": "memory", "die": "ended with -11"}[way]
    assert wanted in done.stdout
