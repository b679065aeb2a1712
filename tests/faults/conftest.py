"""The small stream of the orchestrator's tests, and processes that are killed or stopped deliberately."""

from tests.orchestrator.conftest import decoded, free_port, manifest, runs, small_stream

__all__ = ["decoded", "free_port", "manifest", "runs", "small_stream"]
