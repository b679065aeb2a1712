"""Every fault that would spoil a release is found, in a small repository and in drawn workflows."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import release_check

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = "actions/checkout@" + "0" * 40
WORKFLOW = f"""
permissions:
  contents: read
jobs:
  build:
    steps:
      - uses: {CHECKOUT}  # v1.2.3
        with:
          persist-credentials: false
      - run: make
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository of version 9.8.7 that is ready."""
    files = {
        "pyproject.toml": 'name = "ctvr"\nversion = "9.8.7"\n[project.urls]\n',
        "CITATION.cff": 'version: 9.8.7\ndate-released: "2030-01-02"\n',
        "CHANGELOG.md": "## Unreleased\n\n## 9.8.7 - 2030-01-02\n\n### Added\n- All.\n\n## 9.8.6 - 2030-01-01\n",
        "README.md": "`make sweep` printed this table (2030-01-01, commit HEAD1234).\n",
        "docs/install.md": "pip install dist/ctvr-9.8.7-py3-none-any.whl\n",
        "results/make-sweep.md": "29 runs, 2030-01-01, commit HEAD1234.\n",
        ".github/workflows/checks.yml": WORKFLOW,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("HEAD1234", "abcdef12"))
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "All"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


CHECKS = (
    release_check.check_version,
    release_check.check_changelog,
    release_check.check_tag,
    release_check.check_workflows,
    release_check.check_table,
)


def faults_of(root: Path) -> list[str]:
    return [fault for check in CHECKS for fault in check(root)]


def test_a_repository_that_is_ready_has_no_fault_and_one_that_was_tagged_here_has_none_either(repository):
    assert faults_of(repository) == []
    subprocess.run(["git", "tag", "v9.8.7"], cwd=repository, check=True)
    assert faults_of(repository) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("CITATION.cff", "9.8.7", "9.8.6", ["CITATION.cff", "9.8.6"]),
        ("pyproject.toml", "9.8.7", "9.08.7", ["normal form"]),
        ("docs/install.md", "9.8.7", "9.8.6", ["docs/install.md", "9.8.6"]),
        ("CHANGELOG.md", "## 9.8.7 - 2030-01-02", "## 9.8.5 - 2030-01-02", ["## 9.8.7 - DATE"]),
        ("CHANGELOG.md", "## Unreleased\n", "## Unreleased\n- More.\n", ["Unreleased"]),
        ("CHANGELOG.md", "9.8.7 - 2030-01-02", "9.8.7 - 2030-01-03", ["2030-01-03", "2030-01-02"]),
        ("CHANGELOG.md", "### Added", "### New", ["New"]),
        ("README.md", "abcdef12", "abcdef13", ["abcdef13", "abcdef12"]),
        (".github/workflows/checks.yml", "contents: read", "contents: write", ["checks.yml", "permissions"]),
    ],
)
def test_a_drawn_fault_is_named(repository, file, old, new, named):
    text = (repository / file).read_text()
    (repository / file).write_text(text.replace(old, new, 1))
    found = [fault for fault in faults_of(repository) if "changed files" not in fault]
    assert found
    assert all(any(word in fault for fault in found) for word in named), found


def test_a_changed_file_and_a_tag_of_another_commit_are_faults(repository):
    subprocess.run(["git", "tag", "v9.8.7"], cwd=repository, check=True)
    (repository / "README.md").write_text("`make sweep` printed this table (commit abcdef12). More\n")
    (changed,) = release_check.check_tag(repository)
    assert "1 changed" in changed
    words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "More"]
    subprocess.run(words, cwd=repository, check=True)
    (tagged,) = release_check.check_tag(repository)
    assert "v9.8.7" in tagged


def test_a_pushed_tag_of_another_version_is_a_fault(repository, monkeypatch):
    monkeypatch.setenv("GITHUB_REF_TYPE", "tag")
    monkeypatch.setenv("GITHUB_REF_NAME", "v9.8.7")
    assert list(release_check.check_tag(repository)) == []
    monkeypatch.setenv("GITHUB_REF_NAME", "v9.9.0")
    (other,) = release_check.check_tag(repository)
    assert "v9.9.0" in other


def test_absent_addresses_and_a_commit_out_of_the_history_are_notes(repository):
    (note,) = release_check.notes(repository)
    assert "abcdef12" in note
    (repository / "pyproject.toml").write_text('version = "9.8.7"\n')
    assert [each.partition(":")[0] for each in release_check.notes(repository)] == ["urls", "README"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (CHECKOUT, "actions/checkout@v4"),
        (CHECKOUT, "someone/checkout@" + "0" * 40),
        ("  # v1.2.3", ""),
        ("persist-credentials: false", "fetch-depth: 0"),
        ("contents: read", "contents: write"),
        ("    steps:", "    permissions:\n      id-token: write\n    steps:"),
        ("make", "make ${{ github.ref }}"),
        ("make", "make\n        env: {TOKEN: '${{ secrets.TOKEN }}'}"),
        ("make", "make\n        env: {TOKEN: \"${{ secrets['TOKEN'] }}\"}"),
        ("    steps:", "    uses: someone/else/.github/workflows/a.yml@main\n    steps:"),
    ],
)
def test_a_workflow_that_may_more_or_is_not_pinned_is_refused(old, new):
    assert list(release_check.workflow_faults("checks.yml", WORKFLOW)) == []
    assert list(release_check.workflow_faults("checks.yml", WORKFLOW.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"^Version: .*$", "Version: 1.0"),
        (r"^License-Expression: .*$", "License-Expression: No such license"),
        (r"^Requires-Python: .*$", "Requires-Python: new"),
        (r"^Requires-Dist: torch.*$", "Requires-Dist: torch>="),
        (r"^Classifier: Typing.*\n", ""),
    ],
)
def test_invalid_metadata_is_named(pattern, new):
    version = release_check.version_of(ROOT)
    good = (
        f"Metadata-Version: 2.4\nName: ctvr\nVersion: {version}\nLicense-Expression: Apache-2.0\n"
        "Requires-Python: >=3.10\nRequires-Dist: torch>=2.6\nClassifier: Typing :: Typed\n\n# ctvr\n"
    )
    assert list(release_check.metadata_faults(good.encode(), version)) == []
    bad, count = re.subn(pattern, new, good, flags=re.MULTILINE)
    assert count == 1
    assert list(release_check.metadata_faults(bad.encode(), version))


@pytest.mark.slow
def test_both_distributions_of_this_code_are_whole(tmp_path):
    assert list(release_check.check_built(ROOT, tmp_path)) == []
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gz", ".whl"]


@pytest.mark.slow
def test_a_file_that_the_wheel_lacks_is_named(tmp_path):
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", "--depth=1", ROOT.as_uri(), str(copy)], check=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    text = (copy / "pyproject.toml").read_text()
    (copy / "pyproject.toml").write_text(text.replace('"verified.json", ', ""))
    (fault,) = release_check.check_built(copy, tmp_path)
    assert "verified.json" in fault
