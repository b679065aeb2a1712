"""Damaged files give the right result or one line: no traceback, no hang, no file elsewhere, bounded memory.

Another seed: `CTVR_FUZZ_SEED=7 make test-all`; more inputs: `make fuzz COUNT=2000 SEED=7`.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.engine import SPECIAL, Place, judge, make_input
from tests.fuzz.mutate import HOSTILE, cells_replaced, damaged, places, replaced
from tests.fuzz.targets import TARGETS, Target

SEED = int(os.environ.get("CTVR_FUZZ_SEED", "0"))
EACH = 5  # inputs of a light reader in the quick half
QUICK = [target.name for target in TARGETS if not target.is_heavy]


def fuzz(count: int, names: list[str]) -> str:
    """Run the harness in a separate process, which forks and limits its children."""
    command = [sys.executable, "-m", "tests.fuzz", f"--count={count}", f"--seed={SEED}", f"--targets={','.join(names)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_every_fast_reader_handles_damaged_files() -> None:
    rows = [line.split() for line in fuzz(EACH * len(QUICK), QUICK).splitlines()]
    assert {row[0]: int(row[1]) for row in rows} == {**dict.fromkeys(QUICK, EACH), "all": EACH * len(QUICK)}


@pytest.mark.slow
def test_every_reader_handles_damaged_files() -> None:
    said = fuzz(500, [])
    for target in TARGETS:
        assert f"{target.name} " in said


def test_an_input_is_the_same_for_the_same_seed_and_number(tmp_path: Path) -> None:
    target = next(each for each in TARGETS if each.name == "manifest")
    made = []
    for name in ("a", "b"):
        place = Place(tmp_path / name)
        place.pristine(target)
        for number in range(len(SPECIAL) + 1, 30):
            file = place.fresh()
            make_input(target, SEED, number, file, Path("/outside"))
            made.append(file.read_bytes())
    assert made[: len(made) // 2] == made[len(made) // 2 :]
    assert len(set(made)) > 10


def test_every_kind_of_damage_changes_the_file() -> None:
    draw = random.Random(SEED)
    content, value = bytes(range(256)) * 4, {"a": [1, {"b": "c"}], "d": None}
    assert sum(damaged(content, draw) == content for _ in range(100)) < 10
    assert sum(replaced(value, draw, "/o") == value for _ in range(100)) < 10
    assert sum(cells_replaced(b"a,b\nc,d", draw, "/o") == b"a,b\nc,d" for _ in range(100)) < 30
    assert [place for place in places(value) if place] == [("a",), ("a", 0), ("a", 1), ("a", 1, "b"), ("d",)]
    assert any(isinstance(each, str) and "{outside}" in each for each in HOSTILE)


def _fail(path: Path) -> object:
    raise KeyError(path.name)


def _say(path: Path) -> object:
    from ctvr.orchestrator.errors import ConfigError

    raise ConfigError("one\ntwo" if path.name == "two" else "x" * 5000 if path.name == "long" else "one")


def test_tracebacks_and_answers_of_several_lines_are_found() -> None:
    def outcome(read: object, name: str) -> str:
        return judge(Target("t", lambda folder: name, read), Path(name))[0]  # type: ignore[arg-type]

    assert outcome(_fail, "x") == "traceback"
    assert [outcome(_say, name) for name in ("one", "two", "long")] == ["line", "many lines", "long line"]
    assert outcome(lambda path: 1, "x") == "right"


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
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    wanted = {"write": "written outside", "hang": "hang", "memory": "memory", "die": "ended with -11"}[way]
    assert wanted in done.stdout
