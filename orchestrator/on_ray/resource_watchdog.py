"""Watchdog that releases a driver's autoscaler request if the driver dies without cleaning up.

Ray keeps such a request until the next one, so a killed driver would keep unused machines running. The watchdog is a
process next to the driver (`python -m`); it loads nothing while it waits, and ends with the driver.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time

from ctvr.orchestrator.interpreter import child_environment, run_module

LOOK_SECONDS = 5.0
ATTEMPTS = 5


def start_watchdog(address: str, command: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """Start the process that waits for the end of this one. A driver that ends normally terminates it.

    Args:
        address: of the cluster's GCS.
        command: run instead of releasing the request.
    """
    words = run_module("ctvr.orchestrator.on_ray.resource_watchdog", str(os.getpid()), address, *command)
    nothing, environment = subprocess.DEVNULL, child_environment()
    return subprocess.Popen(
        words, stdin=nothing, stdout=nothing, stderr=nothing, env=environment, start_new_session=True
    )


def main(driver: int, address: str, command: list[str]) -> int:
    while os.getppid() == driver:
        time.sleep(LOOK_SECONDS)
    if command:
        return subprocess.call(command)
    for _ in range(ATTEMPTS):
        try:
            return _release_request(address)
        except Exception:  # the head may be shutting down, and its requests with it
            time.sleep(LOOK_SECONDS)
    return 1


def _release_request(address: str) -> int:
    import ray
    from ray.autoscaler.sdk import request_resources

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    request_resources(bundles=[])
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
