"""Every command in the documents is valid: it parses, and the names in it exist."""

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ctvr
from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator.cli.main import make_parser
from ctvr.orchestrator.config import check_value
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.exporters.script import SCRIPTS, script_of
from ctvr.orchestrator.importers.command import _check_words, parse_file_arguments
from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.on_ray.search_space import WHERE
from ctvr.orchestrator.setting_groups import setting_names
from ctvr.orchestrator.settings.experiment import GROUPS, RunConfig
from ctvr.orchestrator.settings.presets import get_method, presets_of
from ctvr.orchestrator.streams.load import BENCHMARKS, RENDERED
from ctvr.orchestrator.tables.paper_items import find as find_item
from ctvr.orchestrator.tables.presets import preset_names
from tests.test_documents import targets

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RESULTS.md", "REPRODUCIBILITY.md")]
DOCUMENTS += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "results").glob("*.md"))]
OURS = {*RENDERED, *BENCHMARKS, "mine", "films", "any"}  # streams; `mine` and `films` are imported in the documents
OTHER_TOOLS = {
    "aws.md",
    "cluster.md",
    "one-gpu-to-slurm.md",
    "slurm.md",
    "gpu.md",
    "recipes.md",
    "protocol.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
}  # have options of others
SETTING = re.compile(r"`((?:backbone|base|data|evaluation|method|optim|search|tracking)\.[a-z]\w*)(=[^`\s]+)?`")
PLACE = re.compile(r"[A-Z][A-Z_.\-]*$")  # NAME, FILE: the reader's word
PARSER = make_parser()


def _names(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Return the commands of a parser and their actions: `runs`, `runs show`."""
    for part in parser._actions:
        for name, inner in part.choices.items() if isinstance(part, argparse._SubParsersAction) else ():
            yield from (name, *(f"{name} {action}" for action in _names(inner)))


COMMANDS = {*_names(PARSER)}
OTHERS = (
    "aws,bash,brew,cd,chmod,curl,docker,echo,export,git,hf,kubectl,pip,python,python3,ray,sbatch,source,squeue,scancel,ssh,"
    "apptainer,sed,tail"
)


def lines_of(text: str) -> Iterator[str]:
    """Return lines of the shell blocks with their continuation, and commands between backticks."""
    for block in re.findall(r"^```bash\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`((?:ctvr|make) [^`]+)`", plain)


def commands_of(line: str) -> Iterator[list[str]]:
    """Split a line into commands and their words: at && ; |, and at the command that `ray exec` runs."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;><")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    into = False
    for word in [*lexer, ";"]:
        if word not in ("&&", "|", ";", ">", "<", "&"):
            words += [] if into else [word]
            continue
        if into := word in (">", "<"):
            continue
        if words[:2] == ["ray", "exec"]:
            yield from commands_of(words[-1])
        elif words and words[0] not in ("...",):
            yield words[words[0].startswith("CUDA_VISIBLE_DEVICES=") :]
        words = []


def check(words: list[str]) -> None:
    if words[0] == "make":
        assert words[1] in targets(), words
    elif words[0] == "ctvr":
        check_ctvr(words[1:])
    elif words[0] == "python" and words[1] == "orchestrator/sweep.py":
        check_ctvr(["sweep", *words[2:]])
    elif words[:2] == ["ray", "submit"]:
        check_ctvr(["sweep", *words[words.index("--") + 1 :]])
    elif words[:2] == ["bash", "cluster/submit.sh"]:
        check_ctvr(["sweep", *words[3:]])
    elif words[0] in ("python", "bash", "sbatch") and not words[1].startswith("-"):
        assert (ROOT / words[1].removeprefix("~/ctvr_src/")).exists(), words


def check_ctvr(words: list[str]) -> None:
    # `ctvr report` in a sentence names the command; a NAME after an option that counts is some number
    if " ".join(words) in {*COMMANDS, "COMMAND --help", "--version"}:
        return
    if words[-1] == "--help":
        assert words[0] in COMMANDS
        return
    given = PARSER.parse_args([word for word in words if word != "..."])
    known = {
        key: None if isinstance(value, str) and PLACE.match(value) else value for key, value in vars(given).items()
    }
    method = known.get("method") or (
        known.get("name") if known.get("action") == "show" and given.command == "methods" else None
    )
    if method and ":" not in method:
        get_method(method)
    assert (known.get("stream") or "mine") in OURS
    for name in filter(None, (known.get("preset") or "").split(",")):
        tables = preset_names() if given.command == "sweep" else ()
        assert name in {*presets_known(method if method and ":" not in method else ""), *tables}, f"preset {name}"
    if known.get("item"):
        find_item(given.item)
    if "files" in known:
        _check_words(given.kind, parse_file_arguments(given.kind, given.files), given.videos)
    for word in [*(known.get("overrides") or []), *(known.get("space") or [])]:
        check_setting(word, method)


@cache
def _options_of_scripts() -> set[str]:
    return {each for name in SCRIPTS for each in re.findall(r'"(--[a-z][\w-]*)"', script_of(name))}


@cache
def presets_known(method: str) -> set[str]:
    return {
        preset for owner in ([method] if method else [*EVERY_METHOD, *CONFIGURATIONS]) for preset in presets_of(owner)
    }


def check_setting(word: str, method: str | None) -> None:
    name, equals, value = word.partition(WHERE)[0].partition("=")
    assert equals, word
    group, dot, field = name.partition(".")
    if name == "method":
        get_method(value)
        return
    if group == "method" and dot:
        if method and ":" in method:
            return
        owners = [
            cls
            for cls in map(get_method, [method] if method else EVERY_METHOD)
            if field in {*cls.Config.__dataclass_fields__, *setting_names(cls.Config)}
        ]
        assert owners, f"{word}: no such setting of {method or 'any method'}"
        if "," not in value and not PLACE.match(value):
            check_value(owners[0].Config, field, value, group)
        return
    config = {**GROUPS, "search": SearchConfig}.get(group, RunConfig) if dot else RunConfig
    if "," not in value and not PLACE.match(value):
        check_value(config, field if dot else name, value, group if dot else "")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_a_document_parses_and_names_what_is_there(document):
    for line in lines_of(document.read_text(encoding="utf-8")):
        for words in commands_of(line):
            assert words[0] in ("ctvr", "make", *OTHERS.split(",")) or words[0].startswith((".", "python")), line
            try:
                check(words)
            except (ConfigError, AssertionError, ValueError, SystemExit) as error:
                pytest.fail(f"{document.name}: {line.strip()}\n  {error}")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_settings_and_options_that_a_document_names_exist(document):
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for name, value in SETTING.findall(text):
        try:
            check_setting(name.replace("base.", "method.", 1) + (value or "=X"), None)
        except (ConfigError, AssertionError) as error:
            pytest.fail(f"{document.name}: {name}{value}\n  {error}")
    if document.name not in OTHER_TOOLS:
        assert set(re.findall(r"`(--[a-z][\w-]*)", text)) - options_of(PARSER) - _options_of_scripts() == set()


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the long options of a parser and of its commands."""
    found = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for part in action.choices.values() for option in options_of(part)}
    return found


def blocks_of(document: Path, language: str) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_of_a_document_compiles_and_uses_public_names(document):
    for block in blocks_of(document, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ctvr":
                assert node.attr in ctvr.__all__
