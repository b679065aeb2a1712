"""Runs damaged inputs through readers, in children with limits of time and memory, and classifies the outcomes.

An input depends on seed, reader and number only.
"""

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import cells_replaced, damaged, replaced
from tests.fuzz.targets import TARGETS, Target

SECONDS = 20  # of one input; a busy machine needs 2
MEMORY = 768 << 20  # bytes that one input may add: readers of arrays allow 256 MiB and a copy
SPACE = 3 << 30  # address space that a child may add
LONGEST = 1000  # characters of a line for the user
SPECIAL = ("absent", "empty", "folder", "FIFO", "device", "loop")


@dataclass
class Report:
    """Outcomes of inputs: `right` and `line` are accepted, everything in `wrong` is a failure."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{name:14} {count.total():5} {dict(count)}" for name, count in self.counts.items()]
        total = sum((count for count in self.counts.values()), Counter[str]())
        return "\n".join([*rows, f"{'all':14} {total.total():5} {dict(total)}", *self.wrong])


def make_input(target: Target, seed: int, number: int, file: Path, outside: Path) -> str:
    """Write the input of a number; return a description of its damage."""
    if number == 0:
        return "whole"
    if number <= len(SPECIAL):
        kind = SPECIAL[number - 1]
        file.unlink()
        if kind == "empty":
            file.touch()
        elif kind == "folder":
            file.mkdir()
        elif kind == "FIFO":
            os.mkfifo(file)
        elif kind == "device":
            file.symlink_to("/dev/zero")
        elif kind == "loop":
            file.symlink_to(file)
        return kind
    draw = random.Random(f"{seed} {target.name} {number}")
    content = file.read_bytes()
    if target.form in ("json", "lines") and draw.random() < 0.7:
        lines = [content] if target.form == "json" else content.split(b"\n")
        at = draw.randrange(len(lines))
        try:
            lines[at] = json.dumps(replaced(json.loads(lines[at]), draw, str(outside))).encode()
        except ValueError:  # an empty line
            lines[at] = damaged(lines[at], draw)
        file.write_bytes(b"\n".join(lines))
        return "value"
    if target.form == "table" and draw.random() < 0.7:
        file.write_bytes(cells_replaced(content, draw, str(outside)))
        return "cell"
    file.write_bytes(damaged(content, draw))
    return "bytes"


def judge(target: Target, path: Path, show: bool = False) -> tuple[str, str]:
    """Read an input; return the outcome and the output."""
    try:
        target.read(path)
    except target.errors() as error:
        text = str(error)
        if len(text.splitlines()) == 1 and len(text) <= LONGEST:
            return "line", text
        return "many lines" if len(text) <= LONGEST else "long line", text[:300]
    except BaseException as error:
        if show:
            traceback.print_exc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        own = [each for each in traceback.extract_tb(error.__traceback__) if "/tests/fuzz/" not in each.filename]
        place = next((each for each in reversed(own) if "orchestrator" in each.filename), frame)
        return "traceback", f"{type(error).__name__}: {str(error)[:120]} @ {Path(place.filename).name}:{place.lineno}"
    return "right", ""


def fuzz(root: Path, seed: int, count: int, names: Sequence[str] = (), only: int | None = None) -> Report:
    """Try `count` inputs of every reader (by default of all).

    Args:
        root: an empty folder, in which everything happens.
        only: the number of the one input that is tried, in this process.
    """
    report = Report()
    for target in [each for each in TARGETS if not names or each.name in names]:
        outcomes = report.counts.setdefault(target.name, Counter())
        place = Place(root / target.name)
        place.pristine(target)
        if only is not None:
            file = place.fresh()
            print(make_input(target, seed, only, file, place.outside), *judge(target, file, show=True))  # noqa: T201
            continue
        for number, what, outcome, said in _outcomes(target, place, seed, count):
            outcomes[outcome] += 1
            if outcome not in ("right", "line") or (number == 0 and outcome != "right"):
                report.wrong.append(
                    f"{outcome}: --seed {seed} --targets {target.name} --only {number} ({what}): {said}"
                )
        if strangers := place.strangers():
            report.wrong.append(f"written outside: --seed {seed} --targets {target.name}: {strangers}")
    return report


class Place:
    """Folders of a reader: `work` is created again for every input, and nothing else may change."""

    def __init__(self, root: Path) -> None:
        self.root, self.kept, self.work = root, root / "kept", root / "a" / "b" / "work"
        self.outside = root / "outside"

    def pristine(self, target: Target) -> None:
        self.kept.mkdir(parents=True)
        self.name = target.make(self.kept)

    def fresh(self) -> Path:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.kept, self.work)
        os.chdir(self.work)
        return self.work / self.name

    def strangers(self) -> list[str]:
        found = {path.relative_to(self.root).parts[0] for path in self.root.rglob("*")} - {"kept", "a"}
        below = {path.name for path in (self.root / "a").rglob("*") if self.work not in (path, *path.parents)} - {"b"}
        return sorted(found | below)


def _outcomes(target: Target, place: Place, seed: int, count: int) -> Any:
    """Yield (number, damage, outcome, output); a child that dies or hangs is replaced."""
    number = 0
    while number < count:
        reading, writing = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.close(reading)
            _child(target, place, seed, range(number, count), writing)
        os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            pending = b""
            while number < count:
                ready, _, _ = select.select([pipe], [], [], SECONDS + (60 if number == 0 else 0))
                data = pipe.read(1 << 16) if ready else None
                if data is None:
                    os.kill(pid, signal.SIGKILL)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    yield tuple(json.loads(line))
                    number += 1
        _, status = os.waitpid(pid, 0)
        if number < count:
            how = "hang" if data is None else f"ended with {os.waitstatus_to_exitcode(status)}"
            yield number, "?", how, ""
            number += 1


def _child(target: Target, place: Place, seed: int, numbers: range, writing: int) -> None:
    """Judge inputs one after another in a separate process, and report a line for each."""
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    judge(target, place.fresh())  # imports what the reader needs, before memory is bounded
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most, hard = pages * resource.getpagesize() + SPACE, resource.getrlimit(resource.RLIMIT_AS)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)  # `ulimit -v` cannot be raised
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        file = place.fresh()
        what = make_input(target, seed, number, file, place.outside)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcome, said = judge(target, file)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        if grown > MEMORY:
            outcome, said = "memory", f"{grown >> 20} MiB, {outcome}: {said}"
        os.write(writing, json.dumps([number, what, outcome, said.encode(errors="replace").decode()]).encode() + b"\n")
    os._exit(0)
