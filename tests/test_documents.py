"""All names in the documents exist: methods, tests, files, make targets."""

import dataclasses
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
import yaml

import ctvr
from ctvr.orchestrator.streams.load import load_stream
from tools.settings_page import settings_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "REPRODUCIBILITY.md", "RESULTS.md")]
PAGES += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "results").glob("*.md"))]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def links_of(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if ":" not in link]


def anchors_of(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_targets_that_a_document_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:orchestrator|methods|search_spaces|ctvr|tests|tools|docs|cluster)/[\w./-]*[\w/])`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets()


def test_names_of_settings_do_not_break_on_the_site():
    named = re.search(r"^extra_css: \[(.+)\]$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert named is not None
    (rule,) = re.findall(r"td:first-child > code \{(.+?)\}", (ROOT / "docs" / named[1]).read_text(), flags=re.DOTALL)
    assert "white-space: nowrap" in rule
    assert "| `method.prototype_weight` |" in settings_page()  # a name alone in its cell


def test_the_typed_queries_mean_clips_that_are_there_and_are_no_captions(tmp_path):
    spec = importlib.util.spec_from_file_location("typed_queries", ROOT / "docs/typed_queries.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stream = load_stream("shapes-5", tmp_path, render=False)
    captions = {item.video: item.captions for task in stream.tasks for item in task.test}
    assert len(module.QUERIES) == len(set(module.QUERIES.values()) & captions.keys()) == 10
    assert not set(module.QUERIES) & {caption for found in captions.values() for caption in found}
    rows = re.findall(
        r"^\| (.+) \| (\w+) \| \d+ \| \d+ \| \d+ \|$", (ROOT / "results/typed-queries.md").read_text(), re.M
    )
    assert dict(rows) == module.QUERIES


def test_results_links_all_pages_with_printed_tables():
    assert {f"results/{each.name}" for each in (ROOT / "results").glob("*.md")} <= set(links_of(ROOT / "RESULTS.md"))


def test_the_python_page_has_every_public_name_with_its_parameters():
    text = (ROOT / "docs/python.md").read_text()
    sections = dict(re.findall(r"^### `ctvr\.(\w+)`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert sections.keys() == set(ctvr.__all__)
    for name, section in sections.items():
        member = getattr(ctvr, name)
        printed = re.search(rf"^```py\n{name}\((.*)\)", section, re.MULTILINE)
        assert (printed is not None) == inspect.isfunction(member), name
        if printed:
            parameters = inspect.signature(member).parameters.values()
            required = (inspect.Parameter.empty, dataclasses.MISSING)
            written = [p.name if p.default in required else f"{p.name}={p.default!r}" for p in parameters]
            assert re.findall(r"\w+(?:=[^,\s]+)?", printed[1].replace('"', "'")) == written, name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_to_files_and_headings(path):
    for link in links_of(path):
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), link
        assert not anchor or anchor in anchors_of(found), link


def test_every_page_of_the_site_is_in_its_navigation():
    named = (ROOT / "mkdocs.yml").read_text()
    docs = [path.relative_to(ROOT / "docs").as_posix() for path in PAGES if path.is_relative_to(ROOT / "docs")]
    results = [f"results/{path.name}" for path in (ROOT / "results").glob("*.md")]
    assert [page for page in [*docs, *results] if page not in named] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_jobs_whose_steps_exist(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert {"runs-on", "timeout-minutes", "steps"} <= set(job)
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert set(re.findall(r"make ([a-z-]+)", step.get("run", ""))) <= targets()


def test_the_other_settings_of_the_repository_are_yaml_and_agree():
    for path in [*(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"), ROOT / ".pre-commit-config.yaml"]:
        assert isinstance(yaml.safe_load(path.read_text()), dict)
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert version is not None
    assert citation["version"] == version[1]
    assert f"## {version[1]} - {citation['date-released']}" in (ROOT / "CHANGELOG.md").read_text()
