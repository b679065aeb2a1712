"""MLflow's start page sets our choices once; its own program stays whole."""

import asyncio
import json

import pytest

from ctvr.orchestrator.tracking.internals import FIRST_CHOICES
from ctvr.orchestrator.tracking.mlflow_app import create_app, with_choices
from tests.in_subprocess import in_subprocess


def test_the_script_comes_first_and_the_rest_of_the_page_is_unchanged():
    page = with_choices("<html><head><title>a</title></head></html>")
    begin, script, rest = page.partition("<script>")[0], *page.partition("<script>")[2].split("</script>")
    assert (begin, rest) == ("<html><head>", "<title>a</title></head></html>")
    assert json.dumps(FIRST_CHOICES) in script


def start_page() -> tuple[str, bytes]:
    route = create_app().router.routes[0]
    return route.path, asyncio.run(route.endpoint(None)).body


@pytest.mark.slow
def test_the_installed_mlflow_serves_it_as_its_start_page():
    path, body = in_subprocess(start_page)
    assert path == "/"
    assert b"<head><script>for (const [key, value]" in body
    assert b'<div id="root" ' in body
