"""Checks before a release: `make release-check`. docs/release.md says what a maintainer does with the result.

A line `fault` must be corrected before the tag; a line `note` is a fact that the maintainer must know.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import yaml
from packaging.metadata import ExceptionGroup, Metadata
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
# https://keepachangelog.com/en/1.1.0/
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
NAMED = re.compile(r"\bctvr[:-](\d+\.\d+\.\d+)(?=-py3|\b)")  # a wheel or an image in a command
READS = {"contents": "read"}
# Jobs that may do more than read the repository: (workflow, job) -> permissions
MAY = {
    ("publish.yml", "publish"): {"id-token": "write"},
    ("docs.yml", "deploy"): {"pages": "write", "id-token": "write"},
    ("image.yml", "image"): {"contents": "read", "packages": "write"},
}
ACTION = re.compile(r"actions/[a-z-]+@[0-9a-f]{40}")
_BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"

Faults = Iterator[str]


def git(root: Path, *words: str) -> str:
    """Return the output of a git command; empty if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def version_of(root: Path) -> str:
    """Return the version in pyproject.toml."""
    found = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


def check_version(root: Path) -> Faults:
    """Yield each place whose version is not that of pyproject.toml."""
    version = version_of(root)
    if str(Version(version)) != version:
        yield f"pyproject.toml: version {version} is not in normal form. Use {Version(version)}."
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    if citation["version"] != version:
        yield f"CITATION.cff: version is {citation['version']}. Set it to {version}."
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("cluster/*"), root / "Dockerfile"]
    for page in sorted(page for page in pages if page.is_file() and page.name != "CHANGELOG.md"):
        for other in sorted({found[1] for found in NAMED.finditer(page.read_text(encoding="utf-8"))} - {version}):
            yield f"{page.relative_to(root)}: names ctvr {other}. Set it to {version}."


def check_changelog(root: Path) -> Faults:
    """Yield faults of the version's part of CHANGELOG.md."""
    version, text = version_of(root), (root / "CHANGELOG.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    dated = {heading: body for heading, _, body in (part.partition("\n") for part in parts)}
    if dated.get("Unreleased", "").strip():
        yield f"CHANGELOG.md: has entries below Unreleased. Move them below {version}."
    heading = next((each for each in dated if each.startswith(f"{version} - ")), "")
    if not heading:
        yield f"CHANGELOG.md: has no part `## {version} - DATE`. Add it."
        return
    if not dated[heading].strip():
        yield f"CHANGELOG.md: the part of {version} is empty. Add its entries."
    released = str(yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["date-released"])
    if heading.removeprefix(f"{version} - ") != released:
        yield f"CHANGELOG.md: {heading} and CITATION.cff's date-released {released} differ. Set one date."
    found = re.findall(r"^### (.+)$", dated[heading], re.MULTILINE)
    if wrong := [each for each in found if each not in SECTIONS] + [each for each in SECTIONS if found.count(each) > 1]:
        yield f"CHANGELOG.md: {version} has the sections {', '.join(wrong)}. Use each of {', '.join(SECTIONS)} once."


def check_tag(root: Path) -> Faults:
    """Yield faults of the repository's state: changes that are not committed, or a tag of another commit."""
    tag = f"v{version_of(root)}"
    if os.environ.get("GITHUB_REF_TYPE") == "tag" and (pushed := os.environ.get("GITHUB_REF_NAME", "")) != tag:
        yield f"git: the pushed tag {pushed} is not {tag}, the version of pyproject.toml. Push the tag {tag}."
    if changed := git(root, "status", "--porcelain", "--untracked-files=no"):
        yield f"git: {len(changed.splitlines())} changed files. Commit them."
    tagged = git(root, "rev-list", "-n1", tag)
    if tagged and tagged != git(root, "rev-parse", "HEAD"):
        yield f"git: the tag {tag} is at another commit ({tagged[:8]}). Set a new version."


def check_workflows(root: Path) -> Faults:
    """Yield faults of all workflows."""
    for file in sorted((root / ".github" / "workflows").glob("*.y*ml")):
        yield from (f"{file.name}: {fault}" for fault in workflow_faults(file.name, file.read_text(encoding="utf-8")))


def workflow_faults(name: str, text: str) -> Faults:
    """Yield the places where a workflow is not pinned, or may do more than `MAY`.

    Args:
        name: of the file.
        text: its content.
    """
    workflow = yaml.safe_load(text)
    if workflow.get("permissions") != READS:
        yield "permissions of the workflow are not `contents: read`. Set them."
    if re.search(r"\bsecrets\b", text):
        yield "reads a secret. Use the job's own token (github.token, or trusted publishing)."
    pinned = len(re.findall(r"uses: \S+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", text, re.MULTILINE))
    if pinned < text.count("uses: "):
        yield "an action is not followed by `# vX.Y.Z`. Add its version."
    for title, job in workflow["jobs"].items():
        if job.get("permissions", READS) != MAY.get((name, title), READS):
            yield f"permissions of the job {title} differ from MAY in tools/release_check.py. Use those."
        if (name, title) in MAY and "pull_request" in text:
            yield f"the job {title} may write, and pull requests start it. Remove that trigger."
        if "uses" in job:
            yield f"the job {title} is a workflow of another file. Write its steps here."
        for step in job.get("steps", ()):
            yield from (f"job {title}: {fault}" for fault in _step_faults(step))


def _step_faults(step: dict[str, Any]) -> Faults:
    action = step.get("uses", "")
    if action and not ACTION.fullmatch(action):
        yield f"{action} is not an action of GitHub's own, pinned by commit. Use actions/NAME@COMMIT."
    if action.startswith("actions/checkout@") and step.get("with", {}).get("persist-credentials") is not False:
        yield "the checkout keeps its token. Set persist-credentials: false."
    if "${{" in step.get("run", "") + str(step.get("with", {}).get("script", "")):
        yield "a command contains an expression, which a name of a branch could extend. Pass it by `env`."


def build(root: Path, folder: Path) -> tuple[Path, Path]:
    """Build wheel and source distribution of the tracked files into `folder`; return their paths.

    The wheel is built from the unpacked source distribution, as by those who install from it.

    Raises:
        subprocess.CalledProcessError: if a build fails; its `stderr` has the reason.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy, unpacked = Path(temporary) / "copy", Path(temporary) / "unpacked"
        tracked = git(root, "ls-files", "-z").split("\0")
        for name in filter(None, tracked):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            source = root / name
            if source.is_symlink():
                (copy / name).symlink_to(source.readlink())
            elif source.is_file():
                (copy / name).write_bytes(source.read_bytes())
        source_archive = folder / _build("build_sdist", copy, folder)
        with tarfile.open(source_archive) as archive:
            archive.extractall(unpacked, filter="data")
        (tree,) = unpacked.iterdir()
        return folder / _build("build_wheel", tree, folder), source_archive


def _build(hook: str, tree: Path, folder: Path) -> str:
    command = [sys.executable, "-c", _BUILD, hook, str(folder.resolve())]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout.split()[-1]


def check_built(root: Path, folder: Path) -> Faults:
    """Build the distributions into `folder`, and yield faults of their metadata and content."""
    try:
        wheel, _ = build(root, folder)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        yield f"build: failed ({last}). Correct pyproject.toml."
        return
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (metadata,) = (packed.read(name) for name in names if name.endswith(".dist-info/METADATA"))
    yield from metadata_faults(metadata, version_of(root))
    tracked = filter(None, git(root, "ls-files", "-z", "ctvr", "methods", "orchestrator", "search_spaces").split("\0"))
    links = {"ctvr/methods", "ctvr/orchestrator", "ctvr/search_spaces", "methods/ruff.toml"}
    wanted = {name if name.startswith("ctvr/") else f"ctvr/{name}" for name in set(tracked) - links}
    if missing := sorted(wanted - names):
        yield f"build: the wheel lacks {len(missing)} files ({missing[0]}). Add them to package-data."


def metadata_faults(text: bytes, version: str) -> Faults:
    """Yield faults of a wheel's METADATA.

    Args:
        text: content of the file.
        version: the expected version.
    """
    try:
        found = Metadata.from_email(text, validate=True)
    except ExceptionGroup as group:
        yield from (f"metadata: {error}. Correct pyproject.toml." for error in group.exceptions)
        return
    if str(found.version) != version:
        yield f"metadata: version is {found.version}. Run `make clean` and try again."
    if not BytesParser().parsebytes(text).get_payload():
        yield "metadata: the description is empty. Set readme."
    if "Typing :: Typed" not in (found.classifiers or ()):
        yield "metadata: the classifier `Typing :: Typed` is missing, and the package has py.typed. Add it."


def notes(root: Path) -> Iterator[str]:
    """Yield facts that do not prevent a release: no addresses, a table of a commit that is not in the history."""
    if "[project.urls]" not in (root / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        yield (
            "urls: none, because the project has no public address yet. Until the owner names one in [project.urls], "
            "an index shows the package without links, and README's pictures and links, which are relative, do not work"
        )
    readme = (root / "README.md").read_text(encoding="utf-8")
    table = re.search(r"^`make sweep` printed this table .*\bcommit ([0-9a-f]{7,40})", readme, re.MULTILINE)
    commit = table[1] if table else "none"
    if not git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        yield (
            f"README: its table is of commit {commit}, which is not in this history. "
            "Run `make sweep` at the release's commit, or say in the release that the table cannot be checked out"
        )
    elif count := git(root, "rev-list", "--count", f"{commit}..HEAD", "--", "methods", "orchestrator", "search_spaces"):
        yield f"README: its table is of commit {commit}; {count} later commits change the code"


def check_table(root: Path) -> Faults:
    """Yield a fault if README's table and its page in results/ are of different commits."""
    found = {}
    for name, start in (("README.md", r"`make sweep` printed"), ("results/make-sweep.md", r"\d+ runs, ")):
        text = (root / name).read_text(encoding="utf-8")
        commit = re.search(rf"^{start}.*\bcommit ([0-9a-f]{{7,40}})", text, re.MULTILINE)
        found[name] = commit[1] if commit else "none"
    if len(set(found.values())) > 1 or "none" in found.values():
        named = ", ".join(f"{name} {commit}" for name, commit in found.items())
        yield f"README: the table's commits differ ({named}). Run `make sweep` and copy its table."


def main(root: Path = ROOT, folder: Path | None = None) -> int:
    """Print a line for each check, fault and note; return 1 if there is a fault."""
    folder = folder or root / "dist"
    folder.mkdir(exist_ok=True)
    for old in [*folder.glob("ctvr-*.whl"), *folder.glob("ctvr-*.tar.gz")]:
        old.unlink()
    checks: dict[str, Callable[[], Faults]] = {
        "version": lambda: check_version(root),
        "changelog": lambda: check_changelog(root),
        "tag": lambda: check_tag(root),
        "workflows": lambda: check_workflows(root),
        "README's table": lambda: check_table(root),
        "wheel and source distribution": lambda: check_built(root, folder),
    }
    count = 0
    for name, check in checks.items():
        faults = list(check())
        count += len(faults)
        print("\n".join(f"fault  {fault}" for fault in faults) or f"ok     {name}", flush=True)
    for note in notes(root):
        print(f"note   {note}.")
    print(f"{count} faults" if count else f"ready: git tag v{version_of(root)} && git push origin v{version_of(root)}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
