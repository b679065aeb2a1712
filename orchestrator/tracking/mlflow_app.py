"""MLflow's server with pages that open in their view for model training.

It is the plug-in `ctvr` of `mlflow server --app-name`, which pyproject.toml registers. Without it, MLflow opens the
pages for language models, an assistant and a notice on telemetry. Choices that the user makes are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.tracking.internals import FIRST_CHOICES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import HTMLResponse


def create_app() -> Any:
    """Return MLflow's ASGI application, whose start page sets FIRST_CHOICES in a browser that has not chosen yet."""
    from mlflow.server import app as flask
    from mlflow.server.fastapi_app import app
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    page = with_choices((Path(str(flask.static_folder)) / "index.html").read_text(encoding="utf-8"))

    async def home(request: Request) -> HTMLResponse:
        return HTMLResponse(page)

    app.router.routes.insert(0, Route("/", home))  # MLflow's checks of hosts and origins come before all routes
    return app


def with_choices(page: str) -> str:
    """Return MLflow's start page with a script that stores each of FIRST_CHOICES that the browser lacks."""
    script = f"for (const [key, value] of Object.entries({json.dumps(FIRST_CHOICES)}))"
    script += " if (localStorage.getItem(key) === null) localStorage.setItem(key, value);"
    return page.replace("<head>", f"<head><script>{script}</script>", 1)
