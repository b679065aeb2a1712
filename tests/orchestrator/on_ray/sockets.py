"""Listening sockets of processes, and their answers to a stranger."""

import contextlib
import http.client
import ipaddress
import json
import os
import urllib.error
import urllib.request
from pathlib import Path


def listening(processes: set[int]) -> dict[str, str]:
    """Return address:port on which any of these processes listens -> its command, from the kernel."""
    sockets = {}
    for pid in processes:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets[os.readlink(descriptor)] = Path(f"/proc/{pid}/cmdline").read_bytes()
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            command = sockets.get(f"socket:[{words[9]}]")
            if command is not None and words[3] == "0A":
                address, _, port = words[1].partition(":")
                swapped = b"".join(bytes.fromhex(address)[i : i + 4][::-1] for i in range(0, len(address) // 2, 4))
                where = ipaddress.ip_address(swapped)
                where = getattr(where, "ipv4_mapped", None) or where
                found[f"{where}:{int(port, 16)}"] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def offer_job(address: str, command: str) -> int:
    """Return the HTTP status of a server's answer to an offered Ray job; 0 if it does not speak HTTP."""
    request = urllib.request.Request(
        f"http://{address}/api/jobs/",
        json.dumps({"entrypoint": command}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return 0
