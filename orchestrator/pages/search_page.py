"""The search page of `ctvr serve`: a form and pictures of the results, without scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from urllib.parse import urlencode

from ctvr.orchestrator.pages.contact_sheet import card
from ctvr.orchestrator.pages.html import STYLE, page
from ctvr.orchestrator.retrieval.hits import Hit
from ctvr.orchestrator.video.thumbnails import SIZE, WIDTH, strip_html, strips_note

FORM = """
form { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: end; margin: 1rem 0 }
label { display: flex; flex-direction: column; font-size: .9rem; font-weight: 600 }
label:first-child { flex: 1 1 16rem }
input, button { font: 1rem/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  border: 1px solid var(--soft); border-radius: 6px; padding: .45rem .6rem; min-width: 0 }
button { background: var(--card); cursor: pointer }
input:focus-visible, button:focus-visible, a:focus-visible { outline: 2px solid var(--c0); outline-offset: 1px }
ol.grid { list-style: none; padding: 0 } a.card { display: block; color: var(--ink) }
"""
_HASH = base64.b64encode(hashlib.sha256((STYLE + FORM).encode()).digest()).decode()
CONTENT_POLICY = (  # allow our style by its digest, and this service's pictures and form; nothing else
    f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


def search_page(
    query: str,
    k: int,
    found: Sequence[tuple[Hit, str]],
    about: str,
    videos: int,
    max_characters: int,
    max_hits: int,
    examples: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the search page (HTML): the form, and the hits of a query or, without a query, examples.

    Args:
        query: text of the query, or "" without a query.
        k: number of videos in the form.
        found: each hit with the address of its picture ("": no picture).
        about: description of the model.
        videos: number of videos that are searched.
        max_characters: maximum characters of a query.
        max_hits: maximum of `k`.
        examples: captions, each with the address of the picture of its video ("": no picture).
    """
    is_asked = bool(query.strip())
    focus = "" if is_asked else " autofocus"
    parts = [
        '<form role="search" action="/" method="get">\n'
        f'<label>Describe a video <input type="search" name="q" value="{escape(query, quote=True)}" required '
        f'maxlength="{max_characters}" accesskey="s" autocomplete="off"{focus}></label>\n'
        f'<label>Videos <input type="number" name="k" value="{k}" min="1" max="{max_hits}" required></label>\n'
        "<button>Search</button>\n</form>",
        f'<p class="soft">Model: {escape(about)}. {videos} videos.</p>',
    ]
    if is_asked:
        cards = "\n".join(f"<li>{card(hit, _picture(hit, address))}</li>" for hit, address in found)
        parts.append(
            f"<h2>{len(found)} best videos for “{escape(query)}”</h2>\n"
            f"{strips_note(any(address for _, address in found))}\n"
            f'<ol class="grid">\n{cards}\n</ol>'
        )
    elif examples:
        cards = "\n".join(f"<li>{_example(caption, address)}</li>" for caption, address in examples)
        parts.append(f'<h2>Try one of these</h2>\n<ol class="grid">\n{cards}\n</ol>')
    title = f"{query} - search" if is_asked else "Search videos"
    return page(title, "\n".join(parts), FORM, heading="Search videos")


def _example(caption: str, address: str) -> str:
    """Return a link (HTML) that searches for a caption, with the picture of the video at `address`."""
    link = escape(f"/?{urlencode({'q': caption})}", quote=True)
    return f'<a class="card" href="{link}">{_image(address, "") if address else ""}<p>{escape(caption)}</p></a>'


def _picture(hit: Hit, address: str) -> str:
    return strip_html(address, hit.captions[0] if hit.captions else hit.video) if address else ""


def _image(address: str, text: str) -> str:
    return (
        f'<img src="{escape(address, quote=True)}" width="{WIDTH}" height="{SIZE}" loading="lazy" '
        f'alt="{escape(text, quote=True)}">'
    )
