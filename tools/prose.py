"""Linter for the style guide in CONTRIBUTING.md: docstrings, comments, messages, help texts and Markdown.

`python tools/prose.py` checks the paths in CLEAN, `python tools/prose.py PATH ...` others. A line that contains
`prose: allow` (in a comment) is skipped. `--commit-message FILE` checks the subject of a commit.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLEAN = [  # results/ holds text as commands printed it
    *("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "REPRODUCIBILITY.md", "RESULTS.md", "SECURITY.md", "docs"),
    *("orchestrator", "methods", "search_spaces", "cluster", "tests", "tools", "examples", "notebooks"),
    *(f"ctvr/{name}.py" for name in ("__init__", "__main__", "api", "interrupt", "kernels", "pyfunc", "results")),
    *("ctvr/torch_import.py", "ctvr/sandbox"),
]
# Captions, word lists and names of seams are data
DATA = {"blocks.py", "cvlm.py", "lexicon.py", "scenes.py", "train_tiny_clip.py", "typed_queries.py"}
ALLOW = "prose: allow"
MOST_WORDS, SUBJECT = 25, 72
PERSON = r"(?<!you )(?<!who )(?<!they )(?<!user )(?<!reader )(?<!author )"
IS = r"(?:is|are|was|were|be)"
UK = (
    r"\w*(?:normal|optim|initial|minim|maxim|quant|regular|recogn|serial|general|synchron|penal)is(?:e[sdr]?|ing|ations?)"
    r"|(?:un)?labelled|neighbour\w*|behaviours?|colour\w*|centre[sd]?|favour\w*|licences?|grey(?:scale)?|modelling"
)
# name: the kind of text that it is for ("" for all), the pattern, the remedy
RULES = {
    "function-noun": ("function", r"\A(?:The|An?)\b", "a verb and its object: Return ..."),
    "docstring-subject": ("docstring", r"\A(?:What|Of|How|Whether|Who|Where)\b", "verb and object, or a noun"),
    "is-no": ("", rf"(?<!there )\b{IS} no (?!longer\b|more\b|less\b|fewer\b|\w+er than\b)", "is not a"),
    "nothing-of": ("", r"\bnothing of (?:it|them)\b", "no part of it, none of them"),
    "has-not": ("", r"\b(?:has|have|had) not(?:[.,;:)]|$| (?:a|an|the|any)\b)", "does not have, lacks"),
    "is-there": ("", rf"\b{IS} (?:not |already |all )?there\b", "exists"),
    "anew": ("", r"\banew\b", "again"),
    "for-ever": ("", r"\bfor ever\b", "forever"),
    "beside": ("", r"\bbeside\b", "next to, compared with, in addition to"),
    "behind": ("", r"\bbehind\b(?! (?:a |an |the |your )?(?:proxy|firewall|bastion|NAT|login))", "after"),
    "own": ("", r"\bone's own\b", "our own, the user's"),
    "but-for": ("", r"\bbut for\b", "except"),
    "program-as-person": ("", rf"\b{PERSON}(?:told|tells|knows|knew|believe[sd]|wants)\b", "report, record, need"),
    "unnamed-actor": ("", r"\b(?:whoever|somebody|nobody)\b", "name who does it"),
    "goes-on": ("", r"\b(?:goes|go|went|going) on\b", "continue"),
    "heading": ("heading", r"\A(?:What|How|Its|Whether|Who|If)\b[^?]*\Z", "name the subject"),
    "help-fragment": ("help", r"\A(?:of|what|how|that|whether|where)\b", "a noun phrase with its noun"),
    "help-default": ("help", r"\(\d[\w.]*\)\Z", "(default: X)"),
    "exactness": ("", r"\b(?:to the bit|bit[ ]for bit)\b", "bit-identical"),  # prose: allow
    "remedy-verb": ("message", r"(?:\A|[.] )(?-i:Write|Give|Name) ", "Use, Set, Pass or Add"),
    "us-spelling": ("", rf"(?<![\w`./_-])(?:{UK})(?![\w`_(:=/])", "normalize, behavior, color, ..."),
    "question": ("message", r"(?<!mean X)\?(?=\s|\Z)", "imperative, not a question"),
}
COMPILED = {name: (kind, re.compile(rule.replace(" ", r"\s"), re.I), say) for name, (kind, rule, say) in RULES.items()}
Block = tuple[int, int, str, str]  # first line, last line, kind, text


def _text(node: ast.AST) -> str | None:
    """Return the text of a string or an f-string, with X for each inserted value; None for other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def python_blocks(source: str, is_test: bool) -> Iterator[Block]:
    """Yield docstrings and comments; outside tests, yield also help texts, raised messages and longer strings."""
    seen: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and _text(first.value):
                seen.add(id(first.value))
                is_function = isinstance(node, ast.FunctionDef) and not is_test and not node.decorator_list
                kind = "function docstring" if is_function else "docstring"
                yield first.lineno, first.end_lineno or first.lineno, kind, str(_text(first.value))
        keywords = node.keywords if isinstance(node, ast.Call) else []
        kinds: list[tuple[str, ast.AST]] = [("help", word.value) for word in keywords if word.arg == "help"]
        if isinstance(node, ast.Raise) and node.exc:
            kinds += [("message", part) for part in ast.walk(node.exc)]
        for kind, part in [*kinds, ("text", node)]:
            if not isinstance(part, (ast.Constant, ast.JoinedStr)) or id(part) in seen:
                continue
            text = _text(part)
            if text is None or is_test or (kind == "text" and len(text.split()) < 4):
                continue
            seen |= {id(below) for below in ast.walk(part)}
            yield part.lineno, part.end_lineno or part.lineno, kind, text
    lines: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] > lines[-1][0] + 1:
                yield lines[0][0], lines[-1][0], "comment", "\n".join(words for _, words in lines)
                lines = []
            lines.append((token.start[0], token.string.lstrip("# ")))
    if lines:
        yield lines[0][0], lines[-1][0], "comment", "\n".join(words for _, words in lines)


def markdown_blocks(source: str) -> Iterator[Block]:
    """Yield headings, table rows, paragraphs and list items of a Markdown page; code is omitted."""
    source = re.sub(r"^( *)(```|~~~).*?^ *\2", lambda code: re.sub(r".+", "", code[0]), source, flags=re.M | re.S)
    source = re.sub(r"`[^`]+`", lambda code: re.sub(r"[^\n]+", "X", code[0]), source)
    source = re.sub(r"\]\([^)\s]*\)|\]\[[^\]]*\]", "]", source)
    start, lines = 0, [""]
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if not line.strip() or re.match(r"\s*(#|\||[-*] |\d+\. )", line) or lines[-1].lstrip().startswith(("#", "|")):
            if "".join(lines).strip():
                kind = {"#": "heading", "|": "row"}.get("".join(lines).lstrip()[0], "page")
                yield start, number - 1, kind, "\n".join(lines).lstrip("#-* ")
            start, lines = number, []
        lines.append(line)


def long_sentences(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (offset, rule, remedy) of each sentence with more than MOST_WORDS words, or two colons or semicolons."""
    for match in re.finditer(r"\S.*?(?:[.!?][\")*]*(?=\s+[A-Z0-9(\[\"*]|\s*\Z)|\Z)", text, flags=re.S):
        words = [word for word in match[0].split() if re.search(r"[a-zA-Z]", word) and word.strip("(),.;:") != "X"]
        if len(words) > MOST_WORDS:
            yield match.start(), "long-sentence", f"{len(words)} words, at most {MOST_WORDS}"
        if len(re.findall(r"[:;](?=\s)", match[0])) > 1:
            yield match.start(), "colons", "one colon or semicolon a sentence"


def findings(path: Path) -> list[tuple[int, str, str]]:
    """Return (line, rule, quoted text and remedy) for each finding in a file."""
    source, found = path.read_text(), []
    lines = source.splitlines()
    blocks = markdown_blocks(source) if path.suffix == ".md" else python_blocks(source, "tests" in path.parts)
    for first, last, kind, text in blocks:
        hits = [
            (match.start(), name, f'"{" ".join(match[0].split())}": {remedy}')
            for name, (only, rule, remedy) in COMPILED.items()
            if only in kind
            for match in rule.finditer(text)
        ]
        for offset, name, what in [*hits, *(long_sentences(text) if kind == "page" else [])]:
            line = min(first + text[:offset].count("\n"), last)
            if not any(ALLOW in here for here in ([lines[line - 1]] if kind != "text" else lines[first - 1 : last])):
                found.append((line, name, what))
    return sorted(found)


def main(words: list[str]) -> int:
    """Print the findings and their number by rule; return 1 if there are any."""
    if words[:1] == ["--commit-message"]:
        subject = Path(words[1]).read_text().split("\n")[0]
        if len(subject) <= SUBJECT or subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
            return 0
        print(f"commit-subject: {len(subject)} characters, at most {SUBJECT}; the reasons go below an empty line")
        return 1
    given = [Path(word) for word in words] or [ROOT / word for word in CLEAN]
    files = [file for path in given for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    counts: Counter[str] = Counter()
    for file in files:
        if (
            file.suffix in (".py", ".md")
            and file.name not in DATA
            and not {"node_modules", "fixtures"} & set(file.parts)
        ):
            for line, rule, what in findings(file):
                counts[rule] += 1
                print(f"{file}:{line}: {rule}: {what}")
    if counts:
        print(f"{counts.total()} findings:", ", ".join(f"{rule} {count}" for rule, count in counts.most_common()))
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
