"""The list of bugs stays valid: every line is found once, is Python with the bug, and its tests exist."""

import ast
import subprocess
import sys

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants.bugs import BUGS, Bug, changed_lines, mutants_of


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_can_be_planted_and_its_tests_exist(bug, tmp_path):
    target = tmp_path / bug.file
    target.parent.mkdir(parents=True)
    target.write_bytes((mutants.ROOT / bug.file).read_bytes())
    before = ast.dump(ast.parse(target.read_text(encoding="utf-8")))
    mutants.plant(bug, tmp_path)
    assert ast.dump(ast.parse(target.read_text(encoding="utf-8"))) != before
    assert [test for test in bug.tests if not (mutants.ROOT / test.partition("::")[0]).is_file()] == []


@pytest.fixture
def small_tree(tmp_path):
    """Return a package of one function, with a test that covers half of it."""
    root = tmp_path / "root"
    for folder in ("ctvr", "methods", "tests"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "ctvr" / "methods").symlink_to("../methods")
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow', 'fault']\n")
    (root / "methods" / "sums.py").write_text("def add(a, b):\n    return a + b\n\n\ndef half(a):\n    return a / 2\n")
    (root / "tests" / "test_sums.py").write_text(
        "from ctvr.methods.sums import add, half\n\n\ndef test_add():\n    assert add(1, 2) == 3\n    half(1)\n"
    )
    (tmp_path / "copies").mkdir()
    return root


SEEN = Bug("methods/sums.py", "return a + b", "return a - b", "the sum", ("tests/test_sums.py",))
UNSEEN = Bug("methods/sums.py", "return a / 2", "return a", "the half", ("tests/test_sums.py",))


@pytest.mark.slow
def test_a_bug_that_no_test_notices_is_named_and_fails_the_command(small_tree, tmp_path, capsys):
    assert mutants.hunt([SEEN, UNSEEN], small_tree, tmp_path / "copies", jobs=1) == 1
    said = capsys.readouterr().err
    assert "SURVIVED" in next(line for line in said.splitlines() if "the half" in line)
    assert "  caught  " in next(line for line in said.splitlines() if "the sum" in line)


@pytest.mark.slow
def test_tests_that_fail_anyway_catch_nothing(small_tree, tmp_path, capsys):
    (small_tree / "tests" / "test_sums.py").write_text("def test_wrong():\n    assert False\n")
    assert mutants.hunt([SEEN], small_tree, tmp_path / "copies", jobs=1) == 2
    assert "the tests fail without any bug" in capsys.readouterr().err


@pytest.mark.slow
def test_a_kept_bug_is_caught_under_the_settings_of_our_own_tests():
    words = [sys.executable, "-m", "tests.mutants", "--only", "methods/der.py"]
    done = subprocess.run(words, cwd=mutants.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 bugs, 0 survived" in done.stderr


def test_lines_changed_since_a_commit_are_found_and_tests_are_left_out(small_tree):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=small_tree, check=True)
    assert changed_lines(small_tree, "HEAD") == {}
    for file in ("methods/sums.py", "tests/test_sums.py"):
        (small_tree / file).write_text((small_tree / file).read_text().replace("a + b", "b + a").replace("half(1)", ""))
    assert changed_lines(small_tree, "HEAD") == {"methods/sums.py": {2}}
    (bug,) = mutants_of("methods/sums.py", (small_tree / "methods/sums.py").read_text(), {2})
    mutants.plant(bug, small_tree)
    assert "return b - a" in (small_tree / "methods/sums.py").read_text()
