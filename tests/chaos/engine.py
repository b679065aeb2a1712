"""Kills runs without Ray repeatedly and compares the result; one story is one run that is killed until it finishes.

Every attempt of a story is a forked child of this process, which has imported everything. It is killed from outside at
a random moment, or kills itself at a durable call (faults.py). Three things are compared with an unkilled run: the
sha256 over all matrices, metrics, losses, ranks, galleries and final weights, the metrics in MLflow or in the outbox,
and the list of trained tasks (a task with a commit is never trained again).
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ctvr.orchestrator.store.store import Store
from tests.chaos.cases import IMAGE_STREAM, TASKS, case_of, write_others
from tests.chaos.concurrent_writers import contest
from tests.chaos.faults import WHENS
from tests.chaos.lifecycle import (
    VIDEOS,
    Kill,
    Points,
    Story,
    Tracked,
    flush,
    fork,
    is_time,
    last_line,
    live,
    make_database,
    quiet,
    read_events,
    run_child,
    stored_metrics,
    waiting_metrics,
)
from tests.small_stream import write_stream

MOST_KILLS = 4  # in one story: the third hits a recovery from a recovery
LIFE_SECONDS = 300.0  # a life that takes longer hangs


@dataclass
class Outcome:
    """Result of one story."""

    story: Story
    kills: list[Kill] = field(default_factory=list)  # those that hit
    recomputed: int = 0  # tasks begun more than once
    recovery: list[float] = field(default_factory=list)  # seconds from a kill to the next finished task
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Unbroken:
    """Result of the run without kills."""

    digest: str
    metrics: Points
    calls: dict[Tracked, int]  # durable calls of one run
    seconds: float


class Engine:
    """Stories below one folder.

    Args:
        folder: everything is written here; short-lived.
        seed: of all stories.
        methods: names of cases.py, which take turns.
    """

    def __init__(self, folder: Path, seed: int, methods: tuple[str, ...]) -> None:
        self.folder, self.seed, self.methods = folder, seed, methods
        self.manifest = folder / "small.json"
        self.unbroken: dict[str, Unbroken] = {}

    # ------------------------------------------------------------------------------------ preparation

    def prepare(self) -> None:
        """Render and decode the stream, create MLflow's database, and run every method once without kills."""
        quiet(self.folder)
        write_stream(self.folder, TASKS, **VIDEOS)
        write_others(self.folder)
        run_child(make_database, self.folder)
        self._frames().mkdir()
        if of_videos := [name for name in self.methods if case_of(name).stream != IMAGE_STREAM]:
            home = self._unharmed(Story(-1, of_videos[0], "away", True, ()))
            shutil.copytree(home / "store" / "frames", self._frames(), dirs_exist_ok=True)
        for number, method in enumerate(self.methods, start=2):
            recorded = self._unharmed(Story(-number, method, "sqlite", False, ()))
            started = time.monotonic()
            waiting = self._unharmed(Story(-number, method, "away", False, ()))
            seconds = time.monotonic() - started
            digest = (recorded / "digest").read_text()
            metrics = {point: None if is_time(point) else v for point, (v, _) in stored_metrics(recorded).items()}
            many, more = (int((home / "calls").read_text()) for home in (recorded, waiting))
            calls: dict[Tracked, int] = {"sqlite": many, "away": more, "back": more}
            self.unbroken[method] = Unbroken(digest, metrics, calls, seconds)

    def _unharmed(self, story: Story) -> Path:
        """Return the runs folder of a story without kills."""
        home = self._home(story)
        if run_child(live, home, self.manifest, story, None, True):
            raise RuntimeError(f"{story.method}: the run that nobody kills failed: {last_line(home / 'log')}")
        return home

    def _frames(self) -> Path:
        return self.folder / "frames"

    def frames_for(self, home: Path) -> None:
        """Copy the decoded frames into a runs folder."""
        shutil.copytree(self._frames(), home / "store" / "frames", copy_function=os.link)

    def _home(self, story: Story) -> Path:
        """Create an empty runs folder for a story."""
        home = self.folder / f"story{story.number}-{story.tracked}"
        home.mkdir()
        if not story.is_cold:
            self.frames_for(home)
        if story.tracked != "away":
            shutil.copy2(self.folder / "empty.db", home / "mlflow.db")
        return home

    # ------------------------------------------------------------------------------------ the stories

    def story(self, number: int) -> Story:
        """Return the story of that number. Even ones begin with a kill at a durable call, odd ones at a random moment.

        One of twenty is a race of two drivers, and one has a damaged commit between them.
        """
        rng = np.random.default_rng([self.seed, number])
        turn, place = divmod(number // 2, len(self.methods))  # in another order each time: no method only meets races
        method = self.methods[np.random.default_rng([self.seed, 2**32 + turn]).permutation(len(self.methods))[place]]
        tracked: Tracked = "sqlite" if number % 8 < 2 else "back" if number % 8 < 4 else "away"
        calls = self.unbroken[method].calls[tracked]
        kills = [Kill(part=float(rng.random())) for _ in range(int(rng.integers(1, MOST_KILLS)))]
        if number % 2 == 0:
            order = np.random.default_rng([self.seed, 2**31]).permutation(calls)
            kills[0] = Kill(int(order[number // 2 % calls]), WHENS[int(rng.integers(len(WHENS)))])
            kills[1:] = [
                Kill(int(rng.integers(calls)), WHENS[int(rng.integers(3))]) if rng.random() < 0.5 else kill
                for kill in kills[1:]
            ]
        is_cold = bool(rng.random() < 0.1)
        if number % 10 == 9:
            return Story(number, method, "sqlite", is_cold, tuple(kills[:1]), is_contested=True)
        return Story(number, method, tracked, is_cold, tuple(kills))

    def tell(self, story: Story, room: int) -> Outcome:
        """Run a story to its end with at most `room` kills, and compare the result."""
        outcome, home = Outcome(story), self._home(story)
        if story.is_contested:
            outcome.kills, outcome.wrong = contest(self, story, home, room)
            if not outcome.wrong:
                shutil.rmtree(home)
            return outcome
        seen: dict[str, tuple[int, int]] = {}  # commit -> inode and time, as it was first found
        trained: Counter[int] = Counter()
        planned = iter(story.kills[:room])
        died: float | None = None
        while True:
            kill = next(planned, None)
            delay = None if kill is None or kill.call is not None else kill.part * self.unbroken[story.method].seconds
            is_dead, ended = _one_life(home, self.manifest, story, kill, delay)
            events = read_events(home)
            outcome.wrong += _check_life(home, events, seen, trained)
            if died is not None and events:
                done = [at for what, _, at in events if what in ("task", "end") and at > died]
                if done:
                    outcome.recovery.append(done[0] - died)
                    died = None
            if is_dead:
                assert kill is not None
                outcome.kills.append(kill)
                died = ended
                continue
            break
        outcome.recomputed = sum(trained.values()) - TASKS
        outcome.wrong += self._check_end(story, home, outcome)
        if not outcome.wrong:
            shutil.rmtree(home)
        return outcome

    def _check_end(self, story: Story, home: Path, outcome: Outcome) -> Iterator[str]:
        if not (home / "digest").is_file():
            yield f"the run failed: {last_line(home / 'log')}"
            return
        expected = self.unbroken[story.method]
        if (home / "digest").read_text() != expected.digest:
            yield "the digest differs from the unbroken run's"
        if not 0 <= outcome.recomputed <= len(outcome.kills):
            yield f"{outcome.recomputed} tasks were begun again after {len(outcome.kills)} kills"
        yield from (f"damaged object: {name}" for name, problem in Store.open(home / "store").verify() if problem)
        if story.tracked == "back":
            run_child(flush, home)
        found = waiting_metrics(home) if story.tracked == "away" else stored_metrics(home)
        yield from compare(expected.metrics, found)


def compare(expected: Points, found: Mapping[str, tuple[float, int]]) -> Iterator[str]:
    """Check that every metric exists once, with its value."""
    for point in sorted(expected.keys() | found.keys()):
        if point not in found:
            yield f"metric {point} is lost"
        elif point not in expected:
            yield f"metric {point} should not be there"
        elif found[point][1] != 1:
            yield f"metric {point} is there {found[point][1]} times"
        elif expected[point] is not None and found[point][0] != expected[point]:
            yield f"metric {point} is {found[point][0]!r}, should be {expected[point]!r}"


def _check_life(
    home: Path, events: list[tuple[str, int, float]], seen: dict[str, tuple[int, int]], trained: Counter[int]
) -> Iterator[str]:
    """Check after each attempt that commits did not change and that no committed task was trained again."""
    finished = len(seen)
    begun = Counter(task for what, task, _ in events if what == "train") - trained
    yield from (f"task {task + 1} has a commit and was trained again" for task in begun if task < finished)
    trained.update(begun)
    for file in sorted((home / "store" / "commits").rglob("task_*.json")):
        if file.parent.name.startswith("zero-"):
            continue
        identity = (file.stat().st_ino, file.stat().st_mtime_ns)
        if seen.setdefault(str(file), identity) != identity:
            yield f"commit {file.name} was written again"


def _one_life(home: Path, manifest: Path, story: Story, kill: Kill | None, delay: float | None) -> tuple[bool, float]:
    """Run one attempt; return whether it was killed, and when it ended (monotonic seconds)."""
    (home / "digest").unlink(missing_ok=True)
    process = fork(live, home, manifest, story, kill)
    process.join(LIFE_SECONDS if delay is None else delay)
    if process.is_alive():
        process.kill()
        process.join()
        if delay is None:
            (home / "log").open("a").write(f"it hung for {LIFE_SECONDS:.0f} s\n")
            return False, time.monotonic()
    return process.exitcode == -9, time.monotonic()
