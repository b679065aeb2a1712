"""Heartbeats of the workers that train one model together, in order to report stalled workers by name.

A worker that is stopped, swapped out or disconnected raises no error; the others wait in a collective until it times
out. Every worker therefore has a thread that sends a datagram to all others every few seconds, independently of the
main thread: a slow worker still sends heartbeats, a stalled one does not.
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

EVERY = 5.0  # seconds between two heartbeats
STILL = 60.0  # seconds without a heartbeat after which a worker counts as stalled
_here = [""]  # position of this process: task, epoch and step


def record_position(place: str) -> None:
    """Record the task, epoch and step that this process has reached."""
    _here[0] = place


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
        """Return the last known position of every worker; the one with the earliest position delays the others."""
        places = {**self.places, self.rank: _here[0]}
        return ", ".join(f"worker {rank} is in {place or 'the start'}" for rank, place in sorted(places.items()))

    def _run(self) -> None:
        looked = sent = -float("inf")
        self.own.settimeout(self.every / 5)
        while not self._is_over.is_set():
            now = time.monotonic()
            if now - looked > 2 * self.every:  # this process itself was stalled, or has just begun
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
                peer, place = self.peers[rank], _here[0] or "the start"
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
