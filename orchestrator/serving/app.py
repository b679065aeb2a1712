"""The HTTP service: /search, /health, /thumbnail/ID and a page at /. The service only reads.

Queries run sequentially in one thread and thumbnails in another, so that a slow video does not delay queries.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.pages.search_page import CONTENT_POLICY, search_page
from ctvr.orchestrator.retrieval.hits import Hit
from ctvr.orchestrator.serving.gate import Gate
from ctvr.orchestrator.serving.snapshot import Snapshot, video_id
from ctvr.orchestrator.video.thumbnails import Thumbnails

MAX_CHARACTERS, MAX_HITS = 1000, 100
EXAMPLE = "Use for example: /search?q=a+red+square&k=10"
Text = Annotated[str, Query(max_length=MAX_CHARACTERS)]
Count = Annotated[int, Query(ge=1, le=MAX_HITS)]
Result = TypeVar("Result")


class AsciiJSON(JSONResponse):
    """JSON in ASCII: every other character is escaped, so that none can control a terminal or fail to encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class Service:
    """The application and its two threads.

    Args:
        current: returns the snapshot that answers the next query.
        token: token that every request must send; if empty, requests must name this machine as their host.
    """

    def __init__(self, current: Callable[[], Snapshot], token: str = "") -> None:
        self.current, self.thumbnails = current, Thumbnails()
        self._queries = ThreadPoolExecutor(1, "queries")
        self._pictures = ThreadPoolExecutor(1, "pictures")
        self.app: ASGIApp = Gate(self._routes(), token)

    def close(self) -> None:
        """Drop waiting requests, and end the children that decode."""
        for pool in (self._queries, self._pictures):
            pool.shutdown(wait=False, cancel_futures=True)
        self.thumbnails.close()

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[..., Result], *given: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, work, *given)

    def _found(self, query: str, k: int) -> tuple[Snapshot, list[Hit]]:
        snapshot = self.current()  # read once, so that text and videos belong to the same model
        return snapshot, snapshot.search(query, k)

    def _routes(self) -> FastAPI:
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)  # their pages load scripts from other hosts
        app.add_exception_handler(RequestValidationError, _refuse_arguments)
        app.add_exception_handler(ConfigError, _refuse_arguments)
        app.add_exception_handler(StarletteHTTPException, _refuse_address)
        app.add_exception_handler(Exception, _fail)
        methods = ["GET", "HEAD"]

        @app.api_route("/search", methods=methods)
        async def search(q: Text, k: Count = 10) -> AsciiJSON:
            snapshot, hits = await self._in(self._queries, self._found, q, k)
            return AsciiJSON({"query": q, "model": snapshot.about, "hits": [_fields(hit) for hit in hits]})

        @app.api_route("/health", methods=methods)
        async def health() -> AsciiJSON:
            snapshot = self.current()
            return AsciiJSON({"status": "ok", "model": snapshot.about, "videos": len(snapshot.videos)})

        @app.api_route("/thumbnail/{video}", methods=methods)
        async def thumbnail(video: str) -> Response:
            snapshot = self.current()
            item = snapshot.videos.get(video)
            if item is None:
                raise HTTPException(404, "thumbnail: no video of the gallery has this id")
            path, segment = snapshot.model.picture_of(item)
            jpeg = await self._in(self._pictures, self.thumbnails.jpeg, (path, segment)) if path else None
            if jpeg is None:
                raise HTTPException(404, "thumbnail: the file of this video is missing or cannot be read")
            return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=300"})

        @app.api_route("/", methods=methods)
        async def page(q: Text = "", k: Count = 10) -> HTMLResponse:
            if q.strip():
                snapshot, hits = await self._in(self._queries, self._found, q, k)
            else:
                snapshot, hits = self.current(), []
            text = search_page(
                q,
                k,
                [(hit, _address(hit) if hit.path else "") for hit in hits],
                snapshot.about,
                len(snapshot.videos),
                MAX_CHARACTERS,
                MAX_HITS,
                [(caption, _picture(video, snapshot)) for caption, video in snapshot.examples],
            )
            return HTMLResponse(text, headers={"Content-Security-Policy": CONTENT_POLICY})

        return app


def _address(hit: Hit) -> str:
    return f"/thumbnail/{video_id(hit.task, hit.video, hit.segment)}"


def _picture(video: str, snapshot: Snapshot) -> str:
    return f"/thumbnail/{video}" if snapshot.model.picture_of(snapshot.videos[video])[0] else ""


def _fields(hit: Hit) -> dict[str, Any]:
    """Return a hit's fields for JSON, without file paths."""
    return {
        "rank": hit.rank,
        "video": hit.video,
        "score": hit.score if math.isfinite(hit.score) else None,
        "seconds": hit.segment,
        "category": hit.category or None,
        "thumbnail": _address(hit),
    }


async def _refuse_arguments(request: Request, error: Exception) -> AsciiJSON:
    """Answer a wrong argument with one line: its name, the permitted values and an example."""
    if not isinstance(error, RequestValidationError):
        return AsciiJSON({"error": str(error)}, 422)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    limits = {"q": f"a text of at most {MAX_CHARACTERS} characters", "k": f"a whole number from 1 to {MAX_HITS}"}
    return AsciiJSON({"error": f"{name}: must be {limits.get(name, 'valid')}. {EXAMPLE}"}, 422)


async def _refuse_address(request: Request, error: Exception) -> AsciiJSON:
    assert isinstance(error, StarletteHTTPException)
    texts = {
        404: "no such path. Use /, /search, /health or /thumbnail/ID.",
        405: "this service only reads. Use GET.",
    }
    known = isinstance(error, HTTPException) and error.status_code == 404
    text = f"{error.detail}." if known else texts.get(error.status_code, str(error.detail))
    return AsciiJSON({"error": text}, error.status_code, error.headers)


async def _fail(request: Request, error: Exception) -> AsciiJSON:
    return AsciiJSON({"error": "the service failed. Its terminal shows the cause."}, 500)
