"""The list of bugs stays valid: every line is found once, is Python with the bug, and its tests exist."""

import ast
import subprocess
import sys
from collections import Counter

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants.bugs import BUGS, Bug, changed_lines, mutants_of


def test_the_list_of_mistakes_has_no_duplicates():
    assert len(BUGS) >= 50
    assert [str(bug) for bug, count in Counter(map(str, BUGS)).items() if count > 1] == []


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
    (root / "methods").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "ctvr").mkdir()
    (root / "ctvr" / "methods").symlink_to("../methods")
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow', 'fault']\n")
    for folder in ("ctvr", "methods", "tests"):
        (root / folder / "__init__.py").touch()
    (root / "methods" / "sums.py").write_text("def add(a, b):\n    return a + b\n\n\ndef half(a):\n    return a / 2\n")
    (root / "tests" / "test_sums.py").write_text(
        "from ctvr.methods.sums import add, half\n\n\ndef test_add():\n    assert add(1, 2) == 3\n    half(1)\n"
    )
    return root


@pytest.mark.slow
def test_a_bug_that_no_test_notices_is_named_and_fails_the_command(small_tree, tmp_path, capsys):
    seen = Bug("methods/sums.py", "return a + b", "return a - b", "the sum", ("tests/test_sums.py",))
    unseen = Bug("methods/sums.py", "return a / 2", "return a", "the half", ("tests/test_sums.py",))
    folder = tmp_path / "copies"
    folder.mkdir()
    assert mutants.hunt([seen, unseen], small_tree, folder, jobs=1) == 1
    said = capsys.readouterr().err
    assert "SURVIVED" in next(line for line in said.splitlines() if "the half" in line)
    assert "  caught  " in next(line for line in said.splitlines() if "the sum" in line)
    assert "2 bugs, 1 survived" in said


@pytest.mark.slow
def test_tests_that_fail_anyway_catch_nothing(small_tree, tmp_path, capsys):
    (small_tree / "tests" / "test_sums.py").write_text("def test_wrong():\n    assert False\n")
    folder = tmp_path / "copies"
    folder.mkdir()
    bug = Bug("methods/sums.py", "return a + b", "return a - b", "the sum", ("tests/test_sums.py",))
    assert mutants.hunt([bug], small_tree, folder, jobs=1) == 2
    assert "the tests fail without any bug" in capsys.readouterr().err


@pytest.mark.slow
def test_a_kept_bug_is_caught_under_the_settings_of_our_own_tests():
    words = [sys.executable, "-m", "tests.mutants", "--only", "methods/der.py"]
    done = subprocess.run(words, cwd=mutants.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 bugs, 0 survived" in done.stderr


def test_the_message_says_what_stopped_pytest_itself(small_tree, tmp_path, capsys, monkeypatch):
    def stop(*given):
        raise OSError("no room")

    monkeypatch.setattr(mutants, "_run_tests", stop)
    bug = Bug("methods/sums.py", "return a + b", "return a - b", "the sum", ("tests/test_sums.py",))
    folder = tmp_path / "copies"
    folder.mkdir()
    assert mutants.hunt([bug], small_tree, folder, jobs=1) == 2
    assert "OSError: no room" in capsys.readouterr().err


def test_a_line_that_changed_is_refused(small_tree):
    bug = Bug("methods/sums.py", "return b + a", "return b - a", "the sum", ("tests/test_sums.py",))
    with pytest.raises(
        ValueError, match=r"its line is there 0 times: 'return b \+ a'. Correct tests/mutants/bugs.yaml"
    ):
        mutants.plant(bug, small_tree)


def test_a_pattern_that_fits_nothing_is_refused(capsys):
    assert mutants.main(["--only", "*no such bug*"]) == 2
    assert mutants.main(["--only", "*no such bug*", "--list"]) == 2
    assert mutants.main(["--only", "*methods/der.py", "--list"]) == 0
    assert "methods/der.py: similarities of memory pairs are those of each worker alone" in capsys.readouterr().out


SOURCE = """\
LIMIT = 3


def first(a, b):
    note("é", a)
    return a + 1 if a < b else not True


def second(a):
    return a - 1
"""


def test_generated_bugs_change_one_operator_constant_or_call():
    bugs = mutants_of("methods/sums.py", SOURCE, {5})
    assert {bug.tests for bug in bugs} == {("tests/methods/test_sums.py",)}
    assert [bug.after for bug in bugs] == [
        "pass",
        "return a + 1 if a < b else not False",
        "return a + 1 if a >= b else not True",
        "return a + 2 if a < b else not True",
        "return a - 1 if a < b else not True",
    ]
    assert mutants_of("methods/sums.py", SOURCE, {1}) == []


def test_lines_changed_since_a_commit_are_found_and_tests_are_left_out(small_tree):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=small_tree, check=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "all")
    assert changed_lines(small_tree, "HEAD") == {}
    for file in ("methods/sums.py", "tests/test_sums.py"):
        (small_tree / file).write_text((small_tree / file).read_text().replace("a + b", "b + a").replace("half(1)", ""))
    assert changed_lines(small_tree, "HEAD") == {"methods/sums.py": {2}}
    (bug,) = mutants_of("methods/sums.py", (small_tree / "methods/sums.py").read_text(), {2})
    mutants.plant(bug, small_tree)
    assert "return b - a" in (small_tree / "methods/sums.py").read_text()
    with pytest.raises(ValueError, match="--changed nowhere: "):
        changed_lines(small_tree, "nowhere")
