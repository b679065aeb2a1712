"""Signs of life of the workers that train one model together: one that stands still is named while others wait for it.

A worker that is stopped, swapped out or cut off from the network raises no error; the others wait in a collective until
that times out. So every worker has a thread that sends a datagram to all others every few seconds, whatever the main
thread computes or waits for: a slow worker sends it too, a worker that stands still does not.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

EVERY = 5.0  # seconds between two signs of life
STILL = 60.0  # seconds without one after which a worker is named
_here = [""]  # where this process is: task, epoch and step


def at(place: str) -> None:
    """Take note of the task, epoch and step that this process has come to."""
    _here[0] = place


@dataclass(frozen=True)
class Peer:
    """Where a worker hears the others, and which process it is."""

    host: str
    port: int
    machine: str
    pid: int


class Pulse:
    """The signs of life of one worker, sent to all others and heard from them.

    Args:
        rank: of this worker.
        own: its socket (datagrams).
        peers: of all workers, by rank.
        secret: of the group; datagrams without it are not heard.
        tell: hears a line when a worker stands still or goes on; of several workers that wait the first one tells.
        every: seconds between two signs.
        still: seconds without a sign after which a worker is named.
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
        self.heard: dict[int, float] = {}  # rank -> when; one never heard may be behind a firewall
        self.places: dict[int, str] = {}  # rank -> where that worker was when it was last heard
        self.standing: dict[int, str] = {}  # rank -> the line that names it
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
        """Return the lines that name the workers which stand still now; empty if none does."""
        return "; ".join(line for _, line in sorted(self.standing.items()))

    def positions(self) -> str:
        """Return where all workers are that were heard: the one that is behind is the one to look at."""
        places = {**self.places, self.rank: _here[0]}
        return ", ".join(f"worker {rank} is in {place or 'the start'}" for rank, place in sorted(places.items()))

    def _run(self) -> None:
        looked = sent = -float("inf")
        self.own.settimeout(self.every / 5)
        while not self._is_over.is_set():
            now = time.monotonic()
            if now - looked > 2 * self.every:  # this process stood still itself, or has just begun: it heard nobody
                self.heard = dict.fromkeys(self.heard, now)
            looked = now
            if now - sent >= self.every:
                self._send()
                sent = now
            self._hear()
            self._judge(time.monotonic())

    def _send(self) -> None:
        sign = json.dumps([self.secret, self.rank, _here[0][:300]]).encode()
        for rank, peer in enumerate(self.peers):
            if rank != self.rank:
                try:
                    self.own.sendto(sign, (peer.host, peer.port))
                except OSError:  # a full buffer, a network that is away: others name this worker, if they wait long
                    log.debug("no sign of life to worker %d", rank, exc_info=True)

    def _hear(self) -> None:
        """Read every sign that has come; wait a moment for the first."""
        try:
            while True:
                secret, rank, place = json.loads(self.own.recv(4096))
                if secret == self.secret:
                    self.heard[int(rank)], self.places[int(rank)] = time.monotonic(), str(place)
                    self._goes_on(int(rank), str(place))
                self.own.settimeout(0)
        except (TimeoutError, BlockingIOError):
            pass
        except (OSError, ValueError, TypeError):  # a closed port answers; or a stranger's datagram
            log.debug("no sign of life was read", exc_info=True)
        self.own.settimeout(self.every / 5)

    def _goes_on(self, rank: int, place: str) -> None:
        speaks = self._speaks()  # as it did while that worker stood still
        if self.standing.pop(rank, None) and speaks:
            self._say(f"worker {rank} of {len(self.peers)} goes on ({place or 'start'})")

    def _judge(self, now: float) -> None:
        for rank, heard in self.heard.items():
            if now - heard > self.still and rank not in self.standing:
                peer, place = self.peers[rank], _here[0] or "the start"
                self.standing[rank] = (
                    f"worker {rank} of {len(self.peers)} ({peer.machine}, process {peer.pid}) stands still: no sign of "
                    f"life for {now - heard:.0f} s; worker {self.rank} waits for it in {place}"
                )
                log.warning("%s", self.standing[rank])
                if self._speaks():
                    self._say(self.standing[rank])

    def _say(self, line: str) -> None:
        """Tell a line in a thread of its own: who waits for the listener must not miss a sign of life."""
        threading.Thread(target=self.tell, args=(line,), name="pulse-tell", daemon=True).start()

    def _speaks(self) -> bool:
        """Whether this worker tells for all that wait: the first of those that do not stand still."""
        return all(rank in self.standing for rank in range(self.rank))


def meet(
    rank: int, size: int, group: Any, tell: Callable[[str], None], every: float = EVERY, still: float = STILL
) -> Pulse:
    """Start the pulse of this worker; every worker of a process group calls it at the same time.

    Args:
        rank, size: of this worker and of the group.
        group: over which the workers tell their addresses.
        tell, every, still: as of `Pulse`.
    """
    import torch.distributed as dist

    own = _socket_towards(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    host, port = own.getsockname()[:2]
    found: list[Any] = [None] * size
    dist.all_gather_object(found, (Peer(host, port, platform.node(), os.getpid()), secrets.token_hex(8)), group=group)
    return Pulse(rank, own, [peer for peer, _ in found], found[0][1], tell, every, still).start()


def _socket_towards(head: str) -> socket.socket:
    """Return a socket for datagrams, bound to this machine's address in the network of `head`."""
    family, kind, _, _, address = socket.getaddrinfo(head, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # nothing is sent
        here = probe.getsockname()[0]
    own = socket.socket(family, kind)
    own.bind((here, 0))
    return own
