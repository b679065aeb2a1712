"""Child process of the server of `ctvr ui`, which prints the addresses of the pages once the server answers."""

from __future__ import annotations

import http.client
import os
import signal
import sys
import time
import webbrowser

from ctvr.orchestrator.console import say

PAUSE = 0.2  # seconds between requests


def announce(server: int, host: str, port: int, pages: list[tuple[str, str]], opens: bool) -> None:
    """Wait until the server answers, print its pages, and open the first page in a browser if requested.

    Args:
        server: process id of the server, the parent of this process; if it ends, this function returns.
        host, port: address of the server.
        pages: label of each page, and its address relative to the server.
        opens: whether to open the first page.
    """
    while not answers(host, port):
        if os.getppid() != server:
            return
        time.sleep(PAUSE)
    start = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    say("MLflow is ready (stop it with Ctrl-C):")
    for label, page in pages:
        say(f"  {label}: {start}{page}")
    if opens and not webbrowser.open(f"{start}{pages[0][1]}"):
        say("no browser was found; open the URL yourself")


def answers(host: str, port: int) -> bool:
    """Return whether MLflow's server at this address answers."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    pid, name, number, wants, *words = sys.argv[1:]
    announce(int(pid), name, int(number), list(zip(words[::2], words[1::2], strict=True)), wants == "open")
