"""The template of every page: one file without scripts and network access, in light or dark mode."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from ctvr.orchestrator.console import LAYOUT, printable
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.redaction import redact

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --card: #f6f8fa; --page: #fff;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #a66f00; --c5: #3d9fd6; --c6: #777; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --card: #151b23;
  --page: #0d1117; --c0: #4ea8de; --c1: #ff8c42; --c2: #2ecc9a; --c3: #e59ac8; --c4: #e6b84d; --c5: #8ccbf2; } }
* { box-sizing: border-box } body { margin: 0 auto; padding: 1rem; max-width: 78rem; color: var(--ink);
  background: var(--page); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25 } h2 { font-size: 1.2rem; margin-top: 2rem; border-top: 1px solid var(--line);
  padding-top: 1rem } h3 { font-size: 1rem } small, .soft { color: var(--soft) } code { font-size: .9em }
.scroll { overflow-x: auto } .scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--c0) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .25rem .4rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
thead th { white-space: normal; overflow-wrap: normal }
th:first-child, td:first-child { text-align: left } .best { font-weight: 700 } .wrap { white-space: normal;
  min-width: 8.5rem } table:not(.heat) td:first-child { white-space: normal; max-width: 18rem;
  overflow-wrap: break-word }
.all { display: none; font-size: .9rem; padding: .3rem 0 } tr.winner td, tr.winner td:first-child { background:
  var(--card) }
@media screen and (max-width: 45rem) { .all { display: block } .table:not(:has(.all :checked)) .more { display: none }
  table { font-size: .85rem } .wide svg text { font-size: 14px }
  th, td { padding: .25rem .2rem } table:not(.heat) td:first-child { min-width: 7.3rem; max-width: 9rem;
  overflow-wrap: anywhere } }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; padding: 0; margin: .3rem 0;
  font-size: .85rem } .key svg { width: 2.6rem; height: .9rem; vertical-align: middle; margin-right: .4rem }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); gap: 1rem }
.wide { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .6rem; margin: 0 }
.card img { width: 100%; height: auto; border-radius: 4px; display: block } .card p { margin: .4rem 0 0 }
.strip { position: relative; display: block } .strip input { position: absolute; inset: 0; width: 100%;
  height: 100%; margin: 0; opacity: 0; cursor: pointer } .strip :focus-visible + img { outline: 2px solid var(--c0) }
.strip :checked + img { aspect-ratio: 1; max-width: 14rem; object-fit: cover;
  animation: frames 2s steps(4, jump-none) infinite }
.strip > span { display: grid; grid-template-columns: repeat(4, 1fr); text-align: center; font-size: .75rem;
  color: var(--soft) } .strip :checked ~ span { visibility: hidden }
@keyframes frames { from { object-position: 0 } to { object-position: 100% } }
figure { margin: 0 } svg { width: 100%; max-width: 40rem; height: auto } svg text { fill: var(--soft);
  font: 12px system-ui, sans-serif; paint-order: stroke; stroke: var(--page); stroke-width: 3px }
.paper td { color: var(--soft); font-style: italic }
td:first-child, th:first-child { position: sticky; left: 0; background: var(--page) } .heat td, .heat th { padding:
  .2rem .4rem; text-align: center; position: static; background: none } details { margin: .3rem 0 }
li { margin: .2rem 0 }
pre { white-space: pre-wrap; background: var(--card); padding: .8rem; border-radius: 6px; font-size: .85rem }
details > summary { cursor: pointer; font-weight: 600; padding: .3rem 0 }
@page { margin: 12mm }
@media print { body { max-width: none; padding: 0; font-size: 11px } table { font-size: 9px }
  th, td { padding: 2px 4px } th { white-space: normal; overflow-wrap: normal } .wrap { min-width: 0 }
  .all { display: none } table:not(.heat) td:first-child { max-width: 11rem } .grid { gap: .5rem;
  grid-template-columns: repeat(3, 1fr) } svg { max-width: 24rem }
  .scroll { overflow: visible } .card, figure, tr { break-inside: avoid } * { print-color-adjust: exact } }
"""


def page(title: str, body: str, style: str = "", heading: str = "") -> str:
    """Return a complete HTML document. `title` and `heading` (default: the title) are text, `body` is HTML."""
    document = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style></head>\n<body>\n"
        f"<main>\n<h1>{escape(heading or title)}</h1>\n{body}\n</main>\n</body></html>\n"
    )
    return printable(document, keep=LAYOUT)


def check_page(path: Path) -> None:
    """Check that the file of a page can be written, before the page is computed. Do not create the file.

    Raises:
        ConfigError: if the file cannot be written; the message gives the reason.
    """
    path = path.expanduser().absolute()
    above = next(folder for folder in path.parents if folder.exists())
    reason = ""
    if path.suffix.lower() not in (".html", ".htm"):
        reason = "its name does not end in .html"
    elif path.is_dir():
        reason = "it is a folder"
    elif not above.is_dir() or not os.access(above, os.W_OK):
        reason = f"{above} cannot contain files"
    elif above != path.parent:
        reason = f"the folder {path.parent} does not exist"
    if reason:
        raise ConfigError(f"the page cannot be written ({reason})", path, remedy="Choose another file.")


def write_page(path: Path, text: str) -> Path:
    """Write a page atomically, without secrets; return its absolute path.

    Raises:
        ConfigError: if the page cannot be written there.
    """
    path = path.expanduser().absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return publish(path, redact(text).encode())
    except OSError as error:
        raise ConfigError(f"{path}: the page cannot be written ({error.strerror}). Choose another file.") from error
