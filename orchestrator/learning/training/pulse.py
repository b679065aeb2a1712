"""Heartbeats of the workers that train one model together, and of a trial to its driver, to report stalls.

A worker that is stopped, swapped out or disconnected does not raise an error; the other workers wait in a collective
until it times out. Every worker therefore has a thread that sends a datagram to all other workers every few seconds,
independently of the main thread: a slow worker still sends heartbeats, a stalled worker does not.

A trial also sends its *progress* (`report_progress`) to the driver of a sweep: the number of its steps, batches and
stored objects. If the main thread hangs in a read or the GPU is lost, progress stops, although threads still run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ctvr.orchestrator.processes import progress

log = logging.getLogger(__name__)

EVERY = 5.0  # seconds between two heartbeats
STILL = 60.0  # seconds without a heartbeat after which a worker counts as stalled
NO_PROGRESS = 75.0  # seconds without progress after which a trial is reported as stalled


@contextlib.contextmanager
def report_progress(send: Callable[[str], None], can_pause: Callable[[], bool], every: float = EVERY) -> Iterator[None]:
    """Send this process's progress for the length of a `with` block, in a thread, whenever it has changed.

    Args:
        send: receives the JSON text that `ProgressWatch` reads.
        can_pause: returns whether the next epoch or commit will be stored.
        every: seconds between two checks for a change.
    """
    is_over = threading.Event()

    def run() -> None:
        last = ""
        while True:
            place, beats = progress()
            text = json.dumps([f"{platform.node()} {os.getpid()}", beats, place[:300], can_pause()])
            if text != last:
                try:
                    send(text)
                    last = text
                except Exception:  # the cluster is ending, or its head is temporarily unavailable
                    log.debug("progress was not sent", exc_info=True)
            if is_over.wait(every):
                return

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(2 * every)


@dataclass
class ProgressWatch:
    """Progress of one trial, as its driver observes it.

    Attributes:
        since: time of the last change, by `time.monotonic`.
        text: the last text of `report_progress`.
        longest: longest time between two changes of one process, in seconds.
        is_named: whether the trial was reported as stalled.
    """

    since: float
    text: str = ""
    longest: float = 0.0
    is_named: bool = False

    def look(self, text: str, now: float) -> str:
        """Process the current text; return "stalled" or "resumed" when that state begins, otherwise ""."""
        if text == self.text:
            if self.is_named or now - self.since <= max(NO_PROGRESS, 3 * self.longest):
                return ""
            self.is_named = True
            return "stalled"
        if self.text and not self.is_named and json.loads(self.text)[0] == json.loads(text)[0]:
            self.longest = max(self.longest, now - self.since)
        was_named, self.text, self.since, self.is_named = self.is_named, text, now, False
        return "resumed" if was_named else ""

    @property
    def place(self) -> str:
        """Return a text with the host, the process and the last position of the trial."""
        process, _, place, _ = json.loads(self.text) if self.text else ("process not started", 0, "", False)
        return f"{process}, in {place or 'start-up'}"

    @property
    def can_pause(self) -> bool:
        """Return whether the trial makes progress and will store its next epoch or commit."""
        return bool(self.text) and not self.is_named and bool(json.loads(self.text)[3])


@dataclass(frozen=True)
class Peer:
    """Address and process of a worker."""

    host: str
    port: int
    machine: str
    pid: int


class Pulse:
    """Sends and receives the heartbeats of one worker.

    Args:
        rank: rank of this worker.
        own: datagram socket of this worker.
        peers: all workers, by rank.
        secret: shared by the group; datagrams without it are ignored.
        tell: called with a line when a worker stalls or resumes, by only one of the waiting workers.
        every: seconds between two heartbeats.
        still: seconds without a heartbeat after which a worker counts as stalled.
    """

    def __init__(
        self,
        rank: int,
        own: socket.socket,
        peers: Sequence[Peer],
        secret: str,
        tell: Callable[[str], None],
        every: float = EVERY,
        still: float = STILL,
    ) -> None:
        self.rank, self.own, self.peers, self.secret = rank, own, peers, secret
        self.tell, self.every, self.still = tell, every, still
        self.heard: dict[int, float] = {}  # rank -> time of the last heartbeat; a firewall may block a rank forever
        self.places: dict[int, str] = {}  # rank -> position in its last heartbeat
        self.standing: dict[int, str] = {}  # rank -> message about the stalled worker
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> Pulse:
        self._thread.start()
        return self

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(2 * self.every)
        self.own.close()

    def named(self) -> str:
        """Return the messages about the workers that are stalled now; empty if there are none."""
        return "; ".join(line for _, line in sorted(self.standing.items()))

    def positions(self) -> str:
        """Return the last known position of every worker; the worker at the earliest position delays all workers."""
        places = {**self.places, self.rank: progress()[0]}
        return ", ".join(f"worker {rank} is in {place or 'the start'}" for rank, place in sorted(places.items()))

    def _run(self) -> None:
        looked = sent = -float("inf")
        self.own.settimeout(self.every / 5)
        while not self._is_over.is_set():
            now = time.monotonic()
            if now - looked > 2 * self.every:  # this process itself was stalled, or has just started
                self.heard = dict.fromkeys(self.heard, now)
            looked = now
            if now - sent >= self.every:
                self._send()
                sent = now
            self._hear()
            self._judge(time.monotonic())

    def _send(self) -> None:
        sign = json.dumps([self.secret, self.rank, progress()[0][:300]]).encode()
        for rank, peer in enumerate(self.peers):
            if rank != self.rank:
                try:
                    self.own.sendto(sign, (peer.host, peer.port))
                except OSError:  # a full buffer or a network failure: others report this worker if it lasts
                    log.debug("heartbeat to worker %d was not sent", rank, exc_info=True)

    def _hear(self) -> None:
        """Receive all pending heartbeats; wait briefly for the first."""
        try:
            while True:
                secret, rank, place = json.loads(self.own.recv(4096))
                if secret == self.secret:
                    self.heard[int(rank)], self.places[int(rank)] = time.monotonic(), str(place)
                    self._goes_on(int(rank), str(place))
                self.own.settimeout(0)
        except (TimeoutError, BlockingIOError):
            pass
        except (OSError, ValueError, TypeError):  # an error from a closed port, or a foreign datagram
            log.debug("heartbeat was not read", exc_info=True)
        self.own.settimeout(self.every / 5)

    def _goes_on(self, rank: int, place: str) -> None:
        speaks = self._speaks()  # evaluated while that worker still counts as stalled
        if self.standing.pop(rank, None) and speaks:
            self._say(f"worker {rank} of {len(self.peers)} has resumed ({place or 'start'})")

    def _judge(self, now: float) -> None:
        for rank, heard in self.heard.items():
            if now - heard > self.still and rank not in self.standing:
                peer, place = self.peers[rank], progress()[0] or "the start"
                self.standing[rank] = (
                    f"worker {rank} of {len(self.peers)} ({peer.machine}, process {peer.pid}) is stalled: no heartbeat "
                    f"for {now - heard:.0f} s; worker {self.rank} waits for it in {place}"
                )
                log.warning("%s", self.standing[rank])
                if self._speaks():
                    self._say(self.standing[rank])

    def _say(self, line: str) -> None:
        """Call `tell` in a separate thread, so that a slow callback does not delay heartbeats."""
        threading.Thread(target=self.tell, args=(line,), name="pulse-tell", daemon=True).start()

    def _speaks(self) -> bool:
        """Return whether this worker reports for all: it has the lowest rank that is not stalled."""
        return all(rank in self.standing for rank in range(self.rank))


def start_heartbeats(
    rank: int, size: int, group: Any, tell: Callable[[str], None], every: float = EVERY, still: float = STILL
) -> Pulse:
    """Start the heartbeats of this worker; every worker of a process group must call it at the same time.

    Args:
        rank, size: rank of this worker, and size of the group.
        group: process group through which the workers exchange addresses.
        tell, every, still: see `Pulse`.
    """
    import torch.distributed as dist

    own = _socket_towards(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    host, port = own.getsockname()[:2]
    found: list[Any] = [None] * size
    dist.all_gather_object(found, (Peer(host, port, platform.node(), os.getpid()), secrets.token_hex(8)), group=group)
    return Pulse(rank, own, [peer for peer, _ in found], found[0][1], tell, every, still).start()


def _socket_towards(head: str) -> socket.socket:
    """Return a datagram socket bound to this machine's address in the network of `head`."""
    family, kind, _, _, address = socket.getaddrinfo(head, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        here = probe.getsockname()[0]
    own = socket.socket(family, kind)
    own.bind((here, 0))
    return own
