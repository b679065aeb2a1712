"""Kills commands of several steps midway, repeats them, and compares the result with that of an unbroken command.

Every story copies one runs folder with two finished runs, starts a command in a process group of its own, and kills it
at a drawn share of the time that the unbroken command took. The same command must then end as if nothing had happened.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ctvr
from ctvr.orchestrator.console import say
from ctvr.orchestrator.digests import digest_file
from ctvr.orchestrator.store.store import Store
from tests.small_stream import write_stream

# Name -> words after `ctvr`; {home} is the copied folder, {run} the name of one of its runs
COMMANDS = {
    "export": "streams export small/small.json {home}/out --files --features",
    "export hf": "streams export small/small.json {home}/out --hf --license mit",
    "import csv": "streams import csv sample/table.csv --videos sample/videos --name again",
    "import features": "streams import features table=features/table.csv features=features/features.npz "
    "text=features/text_features.npy --name vectors",
    "gc": "cache gc --yes --older-than 1",
    "rebuild": "runs sync --rebuild",  # after mlflow.db was lost
    "runs rm": "runs rm {run} --commits --yes",
    "publish": "export hf {home}/out --model {run} --license mit",
}
AGE = 40 * 86400.0
SECONDS = 300.0  # of a command; one that takes longer hangs


@dataclass(frozen=True)
class Unbroken:
    """An unbroken command: its duration and the state after it."""

    seconds: float
    state: dict[str, str]


class Commands:
    """The folder that is copied, and the unbroken commands."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "base"
        manifest = write_stream(self.base / "small", num_tasks=2)
        for method in ("zero_shot", "framefusion_moe"):
            done = ctvr.run(method, manifest, settings={"optim.epochs": 1}, runs=self.base, keep_model=True)
        self.run = done.run_id
        for words in ("export small/small.json sample --files", "export small/small.json features --features"):
            status, text = self._finish(self.base, ["streams", *words.split()])
            if status:
                raise OSError(f"{words}: {text}")
        with np.load(self.base / "features/features.npz") as found:  # an earlier import that the new one replaces
            np.savez(self.base / "older.npz", **{name: found[name] + 1 for name in found.files})
        older = COMMANDS["import features"].replace("features/features.npz", "older.npz")
        self._finish(self.base, older.split())
        store = Store.open(self.base / "store")
        for number in range(20):  # objects that no run needs, 40 days old
            store.put("gallery", f"unneeded{number}", {"x": np.ones(1000)}, {})
        for path in (self.base / "store").rglob("*"):
            os.utime(path, (time.time() - AGE,) * 2)
        self.unbroken: dict[str, Unbroken] = {}
        for name in COMMANDS:
            home = self._copied(name, folder / "unbroken")
            start = time.monotonic()
            status, text = self._finish(home, self.words(name, home))
            if status:
                raise OSError(f"{name}: status {status}: {text}")
            self.unbroken[name] = Unbroken(time.monotonic() - start, state(home, name))
            shutil.rmtree(home)

    def _copied(self, name: str, home: Path) -> Path:
        shutil.copytree(self.base, home)
        if name == "rebuild":
            (home / "mlflow.db").unlink()
        return home

    def words(self, name: str, home: Path) -> list[str]:
        return [word.format(home=home, run=self.run) for word in COMMANDS[name].split()]

    def story(self, name: str, share: float, home: Path) -> tuple[bool, list[str]]:
        """Kill a command at a share of its time; return whether it hit, and the differences after a repetition."""
        self._copied(name, home)
        process = self._start(home, self.words(name, home))
        with suppress(subprocess.TimeoutExpired):
            process.wait(share * self.unbroken[name].seconds)
        is_hit = process.poll() is None
        if is_hit:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        status, text = self._finish(home, self.words(name, home))
        if not is_hit:
            return False, []
        expected, found = self.unbroken[name].state, state(home, name)
        if status and expected != found:  # equal: it was killed after its last step, and there is nothing to repeat
            return True, [f"the repeated command has status {status}: {text}"]
        keys = sorted(key for key in {*expected, *found} if expected.get(key) != found.get(key))
        return True, [f"{len(keys)} files or points differ, such as {keys[0]}"] if keys else []

    @staticmethod
    def _start(home: Path, words: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ctvr", *words, "--runs", str(home)]
        return subprocess.Popen(
            command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def _finish(self, home: Path, words: list[str]) -> tuple[int, str]:
        """Run a command to its end; return its status and its last line."""
        process = self._start(home, words)
        text = process.communicate(timeout=SECONDS)[0]
        return process.returncode, (text.strip().splitlines() or [""])[-1][:200]


def state(home: Path, name: str) -> dict[str, str]:
    """Return the digest of every file that a command leaves, and MLflow's points, without times and caches.

    A rebuilt run has another id, so of its artifacts nothing is compared.
    """
    found = {}
    for part in ("store", "streams", "out", *(["artifacts"] if name != "rebuild" else [])):
        for path in sorted((home / part).rglob("*")):
            key = path.relative_to(home).as_posix()
            if path.is_file() and not key.startswith(("store/.tmp", "store/uses", "store/reads")):
                text = path.read_bytes().replace(str(home).strip("/").encode(), b"HOME")
                is_listed = path.suffix in (".json", ".csv") or part == "streams"
                found[key] = str(hash(text)) if is_listed else digest_file(path)
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        for row in database.execute(
            "select r.name, m.key, m.value, m.step, r.lifecycle_stage from latest_metrics m "
            "join runs r on r.run_uuid = m.run_uuid"
        ):
            found["point " + " ".join(map(str, row))] = ""
    return found


def kill_commands(folder: Path, kills: int, seed: int, only: int | None) -> tuple[str, list[str]]:
    """Kill commands `kills` times; return the summary and the differences found."""
    commands, drawn = Commands(folder), random.Random(seed)
    for name, each in commands.unbroken.items():
        say(f"{name}: unbroken {each.seconds:.1f} s, {len(each.state)} files and points")
    wrong: list[str] = []
    hit: Counter[str] = Counter()
    number = 0
    while sum(hit.values()) < kills and number < 4 * kills:
        name, share = list(COMMANDS)[number % len(COMMANDS)], drawn.uniform(0.3, 1.0)
        if only in (None, number):
            home = folder / f"story{number}"
            is_hit, faults = commands.story(name, share, home)
            hit[name] += is_hit
            for fault in faults:
                wrong.append(f"story {number} ({name} at {share:.2f}): {fault}")
                say(wrong[-1])
            if not faults:
                shutil.rmtree(home)
        number += 1
    counts = ", ".join(f"{name} {count}" for name, count in hit.items())
    return f"chaos: {sum(hit.values())} kills of commands ({counts}), {len(wrong)} mismatches", wrong
