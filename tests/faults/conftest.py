"""The small stream of the orchestrator's tests, and processes that are hurt on purpose."""

from tests.orchestrator.conftest import _decoded, free_port, manifest, runs, small_stream

__all__ = ["_decoded", "free_port", "manifest", "runs", "small_stream"]
