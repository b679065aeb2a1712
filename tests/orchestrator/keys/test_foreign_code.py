"""A key names all that a plug-in consists of: its imports, their distributions, and the files that it names."""

import random
import sys

import pytest

from ctvr.orchestrator.keys.foreign_code import Closure, digest_closure
from tests.orchestrator.keys.key_plantings import notices, plantings

LISTED = plantings()
QUICK = [*random.Random(53).sample([each for each in LISTED if each["changes"]], 20)]
QUICK += [each for each in LISTED if not each["changes"]]


@pytest.mark.parametrize("planting", QUICK, ids=lambda each: each["kind"])
def test_a_key_notices_an_edit_that_matters_and_no_other(planting, tmp_path):
    assert notices(planting, tmp_path) == planting["changes"]


@pytest.mark.slow
@pytest.mark.parametrize("planting", [each for each in LISTED if each not in QUICK], ids=lambda each: each["kind"])
def test_a_key_notices_every_other_planting_of_the_list(planting, tmp_path):
    assert notices(planting, tmp_path) == planting["changes"]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Write files below a folder from which this process imports."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**files):
        for name, content in files.items():
            file = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)

    return write


def test_a_computed_name_counts_as_every_module_of_the_package(lab):
    lab(lab__heads__one="", lab__heads__two="", lab__other="")
    code = "from importlib import import_module as load\ndef head(name):\n    return load({})\n"
    lab(lab__plug=code.format("f'lab.heads.{name}'"))
    assert set(Closure(["lab.plug"]).digests) == {"lab.plug", "lab.heads.one", "lab.heads.two"}
    lab(lab__plug=code.format("name"))
    assert set(Closure(["lab.plug"]).digests) == {"lab.plug", "lab.heads.one", "lab.heads.two", "lab.other"}


def test_what_ctvr_python_and_our_dependencies_define_is_left_out(lab):
    lab(plug="import json, os.path, torch, numpy as np, scipy.linalg\nimport ctvr\nfrom ctvr.methods.lwf import LwF\n")
    found = Closure(["plug"])
    assert set(found.digests) == {"plug"}
    assert {"ctvr", "ctvr.methods.lwf"} <= found.ours


def test_a_library_that_is_not_our_dependency_counts_with_those_it_requires(lab):
    lab(plug="import pytest\n")
    found = Closure(["plug"]).digests
    assert {"plug", "distribution pytest", "distribution pluggy"} <= set(found)


def test_a_file_that_only_a_function_or_a_script_names_is_not_part_of_the_key(lab, tmp_path):
    script = "if __name__ == '__main__':\n    open('out.txt', 'w')\n"
    lab(plug=f"def save():\n    open('log.txt', 'a')\n{script}X = 'in.txt'\n")
    before = digest_closure("plug")
    for name in ("log.txt", "out.txt"):
        (tmp_path / name).write_text("1")
        assert digest_closure("plug") == before
    (tmp_path / "in.txt").write_text("1")
    assert digest_closure("plug") != before


def test_nothing_is_imported_and_a_missing_module_is_no_error(lab):
    lab(plug="import second, no_such_module\nraise RuntimeError\n", second="raise RuntimeError\n")
    assert set(Closure(["plug", "missing"]).digests) == {"plug", "second"}
    assert not {"plug", "second"} & set(sys.modules)
