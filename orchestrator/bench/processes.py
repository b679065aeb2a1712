"""CPU time of this process and of all that it has started, Ray's daemons and workers among them; Linux only."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Thread

OFTEN = 0.2  # seconds between two looks: what a process does after the last look at it is not counted


def cpu_of_all(proc: Path = Path("/proc")) -> dict[tuple[int, str], float]:
    """CPU seconds of this process and each below it, by number and start; without those of children that ended."""
    ticks, found = os.sysconf("SC_CLK_TCK"), {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        found[int(stat.parent.name)] = (int(fields[1]), fields[19], (int(fields[11]) + int(fields[12])) / ticks)
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _, _) in found.items() if parent in mine} - mine:
        mine |= more
    return {(pid, found[pid][1]): found[pid][2] for pid in mine if pid in found}


class Tree:
    """`with Tree() as tree`: afterwards `tree.seconds` is what all processes have worked inside.

    Ray's raylet does not wait for its workers, so that the kernel adds their time to nobody's: they are watched.
    """

    seconds = 0.0

    def __enter__(self) -> Tree:
        self._first = cpu_of_all()
        self._last = dict(self._first)
        self._ends = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()
        self._last.update(cpu_of_all())
        self.seconds = sum(spent - self._first.get(which, 0.0) for which, spent in self._last.items())

    def _watch(self) -> None:
        while not self._ends.wait(OFTEN):
            self._last.update(cpu_of_all())
