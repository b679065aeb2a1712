"""Allowed imports between packages. A package may import only those listed in its entry, lazily or not.

Imports are read from the sources, including those inside functions and below TYPE_CHECKING: a lazy import cannot reach
a higher layer. docs/architecture.md describes the packages.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
BELOW = ("orchestrator", "methods", "search_spaces")  # packages below ctvr, by links in that folder
PACKAGES = ("ctvr", *BELOW, "tools")
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
TOP_FILES = 16  # python files directly in orchestrator/, at most
MAX_LINES = 350
MAX_LINES_OF_CLASS = 450  # of a file whose only definition is one class

SANDBOX = ("ctvr", "sandbox")  # lies in ctvr/, since methods/ and orchestrator/ both need it; a package of its own
GROUND = {
    "errors",
    "addresses",
    "config",
    "digests",
    "redaction",
    "console",
    "text_files",
    "interpreter",
    "proxies",
    "output_dir",
    "memo",
    "setting_groups",
    "processes",
}
LEAVES = {"ctvr.methods.settings", "ctvr.methods.plug_ins"}  # import nothing of ours
FACES = (ROOT / "ctvr/__init__.py",)  # imports the public names when they are used
MAY: dict[str, set[str]] = {
    package: set(words.split())
    for package, words in {
        "ctvr": "cli jobs sweeps catalog execution retrieval pages figures streams methods",  # no package imports it
        # of the repository, not in the wheel; no package imports it
        "tools": "method_checks migration serving retrieval jobs sweeps catalog execution on_ray tracking tables "
        "learning.run learning.training learning.evaluation settings data importers streams synthetic video "
        "store methods search_spaces",
        "sweep": "cli ctvr",
        "cli": "jobs sweeps catalog execution doctor exporters importers vectors streams tables tracking settings",
        # synthetic: a video that the probe of `ctvr doctor --gpu` decodes; vectors: the card of exported features
        "jobs": "bundles sweeps execution method_checks serving pages retrieval on_ray tables tracking migration "
        "vectors learning.run learning.training learning.evaluation learning.record settings keys figures "
        "data streams synthetic video store methods",
        "sweeps": "catalog execution method_checks on_ray tables tracking learning.run learning.evaluation "
        "settings keys data streams store methods search_spaces",
        # learning.evaluation: metrics of ranks; learning.record: commits; data: arrays of strangers
        "bundles": "tables tracking learning.evaluation learning.record data streams store",
        "catalog": "learning.evaluation settings tables methods streams search_spaces",
        "execution": "tracking streams store",
        "on_ray": "tracking learning.run learning.training learning.record settings keys data streams video "
        "store methods",
        "doctor": "on_ray tracking streams store methods sandbox",
        "tables": "tracking streams methods search_spaces figures",
        # streams: the counts of a query's rank
        "tracking": "learning.run learning.training learning.evaluation learning.record settings figures data "
        "streams methods",
        "serving": "pages retrieval streams video methods",
        "pages": "retrieval tables streams video",
        # learning.evaluation: ties in ranks
        "migration": "learning.evaluation data streams methods",
        # settings: the backbone that a card names
        "retrieval": "learning.run learning.evaluation settings vectors data streams video store methods",
        # data: the queries that an evaluation ranks
        "method_checks": "learning.training learning.evaluation learning.record settings keys data methods",
        "learning.run": "learning.training learning.evaluation learning.record settings keys data "
        "streams store methods",
        "learning.training": "learning.evaluation learning.record settings keys data streams store methods",
        "learning.evaluation": "learning.record settings keys data streams store methods",
        "learning.record": "keys data streams store methods",
        "settings": "keys data streams store methods",
        "keys": "data streams store methods",
        "figures": "",
        "data": "streams video store methods sandbox",
        "exporters": "importers vectors data video",  # readers of tables and videos, whose text a script copies
        "importers": "vectors data streams video",  # data: arrays of features; vectors: their cards
        "vectors": "data synthetic",  # data: arrays; synthetic: the clips by which an embedder is recognized
        "streams": "synthetic video",  # video: the endings of files
        "video": "sandbox",
        "synthetic": "",
        "store": "",
        "methods": "sandbox",
        "sandbox": "",
        "search_spaces": "",
    }.items()
}
# Who may import a library at all. Those that are not listed are for every package
LIBRARIES: dict[str, set[str]] = {
    package: set(words.split())
    for package, words in {
        "ray": "on_ray search_spaces",
        "optuna": "on_ray",
        "mlflow": "tracking",
        "matplotlib": "figures",
        "fastapi": "serving",
        "starlette": "serving tracking",
        "uvicorn": "serving",
        "obstore": "store",
        "pydantic": "config on_ray",
        "psutil": "processes on_ray cli",
        "av": "video synthetic doctor",
        "decord": "video",
        "torchcodec": "video",
        "open_clip": "methods learning method_checks tools exporters",
        "torch": "methods keys learning data on_ray jobs sweeps catalog tracking retrieval method_checks migration "
        "tools exporters",
        "transformers": "exporters tools",
        "sentence_transformers": "exporters",
    }.items()
}
# Importing one of these loads neither torch nor what only a learner needs: a command answers, and a trial's driver
# starts, without waiting for it
TORCH_FREE = (
    "cli",
    "doctor",
    "tables",
    "exporters.script",
    "importers",
    "streams",
    "video",
    "store",
    "execution",
    "jobs.frames",
    "jobs.publish",
    "jobs.verify",
    "jobs.compare",
    "bundles",
    "vectors.card",
    "vectors.canaries",
    "vectors.feature_set",
    "catalog.methods",
    "on_ray.single_worker",
    "sweeps.preflight",
    "catalog.new_method",
    "on_ray.ray_paths",
    "on_ray.plan",
    "on_ray.trial",
    "on_ray.tune",
    "on_ray.worker",
)

# Known violations, until their packages have been mended. Exact: an entry that is no longer true fails
KNOWN_CIRCLES: set[tuple[str, str]] = set()
KNOWN_LONG: set[str] = set()


class Arrow(NamedTuple):
    """One import: its place, and the module that it names."""

    file: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} -> {self.module}"


def arrows(file: Path) -> Iterator[Arrow]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Arrow(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: write the full name, not a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield Arrow(file, node.lineno, whole if path_of(whole) else str(node.module))


def path_of(module: str) -> Path | None:
    """Return the file of one of our modules; a package is its __init__.py."""
    if module.partition(".")[0] != "ctvr":
        return None
    bare = ROOT / module.replace(".", "/")
    return next((path.resolve() for path in (bare.with_suffix(".py"), bare / "__init__.py") if path.is_file()), None)


def module_of(file: Path) -> str:
    """Return the dotted name by which a file is imported."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("ctvr", *parts) if parts[0] in BELOW else parts)


def package_of(file: Path) -> str:
    """Return the package of a file; those in orchestrator/learning/ are `learning.run` and so on."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    if parts[:2] == ("orchestrator", "learning"):
        return ".".join(parts[1:3])
    return parts[1] if parts[0] == "orchestrator" or parts[:2] == SANDBOX else parts[0]


def top_package_of(file: Path) -> str:
    return package_of(file).partition(".")[0]


@cache
def every_arrow() -> list[Arrow]:
    """Parse all sources once, and only in the process that runs these tests."""
    return [arrow for file in FILES for arrow in arrows(file)]


def is_allowed(arrow: Arrow) -> bool:
    target = path_of(arrow.module)
    if target is None or arrow.file in FACES or arrow.module.startswith(tuple(LEAVES)):
        return True
    here, there = package_of(arrow.file), package_of(target)
    return (
        here == there
        or (there in GROUND and here not in ("methods", "search_spaces", "sandbox"))
        or there in MAY.get(here, set())
    )


def test_no_import_leads_up_or_across():
    assert [str(arrow) for arrow in every_arrow() if not is_allowed(arrow)] == [], "these arrows are not in MAY"


def test_links_lead_from_the_package_to_the_folders_of_the_repository():
    assert {name: os.readlink(ROOT / "ctvr" / name) for name in BELOW} == {name: f"../{name}" for name in BELOW}


def test_no_file_imports_our_packages_by_the_names_of_their_folders():
    """A user may have a file called `methods`, too; ours is `ctvr.methods`."""
    found = [str(arrow) for arrow in every_arrow() if arrow.module.partition(".")[0] in BELOW]
    others = ("tests", "docs", "cluster", "examples", "notebooks")
    texts = [file for name in others for end in ("py", "md", "ipynb") for file in (ROOT / name).rglob(f"*.{end}")]
    statement = re.compile(rf'^[\s">]*(?:from|import) (?:{"|".join(BELOW)})(?: import| as |\.\w|$)', re.MULTILINE)
    found += [str(file) for file in (*ROOT.glob("*.md"), *texts) if statement.search(file.read_text(encoding="utf-8"))]
    assert found == []


def test_a_library_is_imported_in_its_own_packages_only():
    strangers = [
        str(arrow)
        for arrow in every_arrow()
        if top_package_of(arrow.file) not in LIBRARIES.get(arrow.module.partition(".")[0], {top_package_of(arrow.file)})
    ]
    assert strangers == []


def test_every_package_is_listed_and_no_listed_package_is_gone():
    folders = {package_of(file) for file in FILES} - {"__init__", "learning.__init__"}
    assert folders == set(MAY) | GROUND


def test_packages_and_files_form_no_circle():
    """Packages are checked by MAY, files by their imports, including lazy ones and those for types only."""
    needs: dict[str, set[str]] = {str(file.relative_to(ROOT)): set() for file in FILES}
    for arrow in every_arrow():
        target = path_of(arrow.module)
        if target is not None and target != arrow.file and arrow.file not in FACES:
            needs[str(arrow.file.relative_to(ROOT))].add(str(target.relative_to(ROOT)))
    assert circle(MAY) == []
    for first, second in KNOWN_CIRCLES:
        assert second in needs[first], "this circle no longer exists: take it out of KNOWN_CIRCLES"
        assert first in needs[second], "this circle no longer exists: take it out of KNOWN_CIRCLES"
        needs[first].discard(second)
    assert circle(needs) == []


def circle(needs: dict[str, set[str]]) -> list[str]:
    """Return the names on one circle of a graph; empty if none exists."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(needs.get(name, ())):
            if found := walk(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(needs) if (found := walk(name, []))), [])


def max_lines_of(file: Path) -> int:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    definitions = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    is_one_class = len(definitions) == 1 and isinstance(definitions[0], ast.ClassDef)
    return MAX_LINES_OF_CLASS if is_one_class else MAX_LINES


def test_file_sizes_names_and_places_follow_the_rules():
    """Few files are at the top, none is too long, and none has a meaningless name."""
    at_top = [file.name for file in FILES if file.parent == ROOT / "orchestrator"]
    assert len(at_top) <= TOP_FILES, at_top
    long = {file for file in FILES if len(file.read_text(encoding="utf-8").splitlines()) > max_lines_of(file)}
    assert {str(file.relative_to(ROOT)) for file in long} == KNOWN_LONG
    assert [file for file in FILES if file.stem in {"utils", "common", "helpers", "core", "misc"}] == []
    words = [
        file
        for file in FILES
        if file.name == "__init__.py" and package_of(file) != "__init__" and "orchestrator" in file.parts
    ]
    assert [str(file) for file in words if file.read_text().strip() and file.parent.name != "doctor"] == []


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Return the modules loaded after each step: `import ctvr` and its names, then every module of TORCH_FREE."""
    modules = [
        module_of(file)
        for file in FILES
        if file.name != "__init__.py"
        for name in TORCH_FREE
        if f"ctvr.orchestrator.{name}." in module_of(file) + "."
    ]
    for name in TORCH_FREE:
        assert any(f"{each}.".startswith(f"ctvr.orchestrator.{name}.") for each in modules), f"no file is called {name}"
    code = (
        "import importlib, json, sys\n"
        "import ctvr, ctvr.orchestrator\n"
        "dir(ctvr)\n"
        "loaded = {'orchestrator': sorted(sys.modules)}\n"
        f"for name in {sorted(modules)}:\n"
        "    importlib.import_module(name)\n"
        "    loaded[name] = [each for each in ('torch', 'open_clip', 'torchvision') if each in sys.modules]\n"
        "print(json.dumps(loaded))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_packages_that_answer_at_once_load_no_torch(loaded):
    loads = [name for name, found in loaded.items() if name != "orchestrator" and found]
    assert loads[:1] == [], "the first module with which torch was loaded"


def test_importing_ctvr_loads_no_heavy_package(loaded):
    ours = [
        name for name in loaded["orchestrator"] if name.startswith(("ctvr.orchestrator.", "ctvr.methods", "ctvr.api"))
    ]
    assert ours == []
    assert {"numpy", "pydantic", "torch", "ray", "mlflow"}.isdisjoint(loaded["orchestrator"])
