"""The contact sheet of a search: each query with pictures of its results."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ctvr.orchestrator.pages.html import page
from ctvr.orchestrator.retrieval.hits import Hit
from ctvr.orchestrator.video.thumbnails import image, strips, strips_note


def contact_sheet(found: Sequence[tuple[str, Sequence[Hit]]], model: str) -> str:
    """Return a page (HTML) that shows each (query, hits) of `found`. `model` is the name of the model."""
    pictures = strips((hit.path, hit.segment) for _, hits in found for hit in hits)
    note = strips_note(any(hit.path for _, hits in found for hit in hits))
    parts = [f'<p class="soft">Model: {escape(model)}.</p>{note}']
    for text, hits in found:
        said = [hit.captions[0] if hit.captions else hit.video for hit in hits]
        cards = "\n".join(card(hit, image((hit.path, hit.segment), pictures, text)) for hit, text in zip(hits, said))
        parts.append(f'<h2>{escape(text)}</h2>\n<div class="grid">\n{cards}\n</div>')
    return page("Search", "\n".join(parts))


def card(hit: Hit, picture: str) -> str:
    """Return a hit as an HTML card. `picture` is the HTML of its picture."""
    said = hit.captions[0] if hit.captions else ""
    task = f" · {hit.task}" if hit.task else ""
    return (
        f'<figure class="card">{picture}'
        f"<p><b>{hit.rank}</b> · {hit.score:.3f} · {escape(hit.video)}{escape(task)}</p>"
        f"<p><small>{escape(said)}</small></p></figure>"
    )
