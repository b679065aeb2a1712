"""What the documents name is there: methods, tests, files, targets of make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from methods import CONFIGURATIONS, METHODS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    "CONTRIBUTING.md",
    "REPRODUCIBILITY.md",
    "SECURITY.md",
    "README.md",
    "docs/architecture.md",
    "docs/recipes.md",
    "docs/protocol.md",
]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_every_method_says_what_was_verified_and_by_which_test():
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|", (ROOT / "REPRODUCIBILITY.md").read_text(), re.MULTILINE
    )
    assert sorted(name for name, *_ in rows) == sorted({*METHODS, *CONFIGURATIONS})
    for name, grade, tests, against in rows:
        assert grade in {"code", "paper", "ours"}, name
        assert re.findall(r"`tests/\S+\.py`", tests), name
        assert against.strip(), name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_and_targets_that_a_document_names_are_there(name):
    text = (ROOT / name).read_text()
    paths = re.findall(r"`((?:orchestrator|methods|search_spaces|tests|docs|cluster)/[\w./-]*[\w/])`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets()


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
