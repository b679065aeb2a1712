"""Search for videos that match a text, with results as a list and as a page with frames (`ctvr search`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctvr.orchestrator.console import printable, say
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.pages.html import check_page, write_page
from ctvr.orchestrator.retrieval.checks import check_query

if TYPE_CHECKING:
    import numpy as np

    from ctvr.orchestrator.retrieval.hits import Hit


def run_query(
    texts: Sequence[str],
    name: str,
    execution: ExecutionConfig,
    k: int = 10,
    among: Path | None = None,
    html: Path | None = None,
    vectors: Path | None = None,
) -> str:
    """Return the k best videos for each query by the model called `name` (`jobs.load_model.load`).

    Args:
        texts: the queries; empty with `vectors`.
        vectors: a file of query vectors for a model of imported features, instead of texts.
        among: a folder of videos to search; if None, the videos of the model's stream are searched.
        html: a file for a page with the results and frames of the videos; if None, no page is written.

    Raises:
        ConfigError: for an unknown model, an empty text, texts and vectors together, missing videos, or a file that
            cannot be read or written.
    """
    given = _read_vectors(vectors, texts) if vectors is not None else None
    check_query([str(vectors)] if given is not None else texts, k)
    if html is not None:
        check_page(html)
    from ctvr.orchestrator.jobs.load_model import load  # imports torch
    from ctvr.orchestrator.pages.contact_sheet import contact_sheet

    model = load(name, execution)
    if vectors is not None and given is not None:
        named = [f"{vectors.name}[{row}]" for row in range(len(given))]
        found = [(label, model.search(row, k, among)) for label, row in zip(named, given)]
    else:
        found = [(text, model.search(text, k, among)) for text in texts]
    if html is not None:
        asked = f"{model.method}, trained on {model.settings['stream']} ({name})"
        say(f"written: {write_page(html, contact_sheet(found, asked))}")
    return "\n\n".join(hits_text(text, hits) for text, hits in found)


def _read_vectors(file: Path, texts: Sequence[str]) -> np.ndarray:
    if texts:
        raise ConfigError(
            f"is given together with the text {texts[0]!r:.80}", f"--vectors {file}", remedy="Use one of them."
        )
    from ctvr.orchestrator.retrieval.query_vectors import read_query_vectors  # imports torch

    return read_query_vectors(file)


def hits_text(text: str, hits: Sequence[Hit]) -> str:
    """Format a query and its hits, one line each."""
    width = max(len(hit.video) for hit in hits)
    lines = [f"{hit.rank:4}  {hit.score:6.3f}  {hit.video:<{width}}  {_describe_hit(hit)}".rstrip() for hit in hits]
    return "\n".join([f"{text!r}", *lines])


def _describe_hit(hit: Hit) -> str:
    segment = f" {hit.segment[0]:g}-{hit.segment[1]:g} s" if hit.segment else ""
    return f"{printable(hit.captions[0] if hit.captions else hit.path)}{segment}"
