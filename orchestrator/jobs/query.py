"""Search for videos that match a text, as a list and as a page with pictures (`ctvr search`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctvr.orchestrator.console import printable, say
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.pages.html import check_page, write_page
from ctvr.orchestrator.retrieval.checks import check_query

if TYPE_CHECKING:
    from ctvr.orchestrator.retrieval.model import Hit


def run_query(
    texts: Sequence[str],
    name: str,
    execution: ExecutionConfig,
    k: int = 10,
    among: Path | None = None,
    html: Path | None = None,
) -> str:
    """Return the k best videos for each text by the model called `name` (`jobs.load_model.load`).

    Args:
        among: a folder of videos to search; None: the videos of the model's stream.
        html: a file for the contact sheet; None: no contact sheet.

    Raises:
        ConfigError: for an unknown model, an empty text, missing videos, or a file that cannot be written.
    """
    check_query(texts, k)
    if html is not None:
        check_page(html)
    from ctvr.orchestrator.jobs.load_model import load  # imports torch
    from ctvr.orchestrator.pages.contact_sheet import contact_sheet

    model = load(name, execution)
    found = [(text, model.search(text, k, among)) for text in texts]
    if html is not None:
        asked = f"{model.method}, trained on {model.settings['stream']} ({name})"
        say(f"written: {write_page(html, contact_sheet(found, asked))}")
    return "\n\n".join(hits_text(text, hits) for text, hits in found)


def hits_text(text: str, hits: Sequence[Hit]) -> str:
    """Format a query and its hits, one line each."""
    width = max(len(hit.video) for hit in hits)
    lines = [f"{hit.rank:4}  {hit.score:6.3f}  {hit.video:<{width}}  {_said(hit)}".rstrip() for hit in hits]
    return "\n".join([f"{text!r}", *lines])


def _said(hit: Hit) -> str:
    segment = f" {hit.segment[0]:g}-{hit.segment[1]:g} s" if hit.segment else ""
    return f"{printable(hit.captions[0] if hit.captions else hit.path)}{segment}"
