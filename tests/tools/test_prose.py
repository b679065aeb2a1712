"""The prose linter: one case for each rule, and text that it must accept."""

import pytest

from tools import prose

ROOT = prose.ROOT
BAD = {
    "docstring-subject": '"""What a store keeps."""',
    "is-no": "# FOLDER is no folder",
    "has-not": "# a loss that the retriever has not.",
    "is-there": "# the file is there",
    "anew": "# written anew",
    "for-ever": "# it waits for ever",
    "beside": "# the table beside it",
    "behind": "# the block behind it",
    "own": "# a table of one's own",
    "function-noun": 'def frames():\n    """The frames."""',
    "nothing-of": "# nothing of it is kept",
    "but-for": "# all but for one",
    "program-as-person": "# the driver knows it",
    "unnamed-actor": "# whoever reads it",
    "goes-on": "# the run\n# goes on",
    "help-fragment": 'parser.add_argument("--name", help="of the sweep")',
    "help-default": 'parser.add_argument("--seeds", help="seeds (3)")',
    "question": 'raise ValueError(f"{x}: of what?")',
    "exactness": "# both are equal to the bit",
    "remedy-verb": 'raise ValueError(f"{x} is unknown. Write another one.")',
    "us-spelling": "# the features are normalised",
    "heading": "# How it scales",
    "long-sentence": "The file has one line" + " and another line" * 7 + ".",
    "colons": "It has two: one; and two.",
}
GOOD = [
    "# there is no file; it is no longer read; the sum is no larger than b",
    "# it has not begun",
    "# a server behind a proxy, for every user who knows it",
    '"""Return the frames."""\nparser.add_argument("--seeds", help="seeds of the rerun (default: 3)")',
    'raise ValueError(f"lws is unknown. Did you mean {x}?")',
    "# the argument `normalise` of images.normalise(x)",
    'PATTERN = "is there"',  # fewer than four words are not prose
]


def rules(tmp_path, text: str, name: str) -> list[str]:
    path = tmp_path / name
    path.write_text(text + "\n")
    return [rule for _, rule, _ in prose.findings(path)]


@pytest.mark.parametrize("rule", BAD)
def test_each_rule_finds_its_case(rule, tmp_path):
    name = "page.md" if rule in ("heading", "long-sentence", "colons") else "module.py"
    assert rules(tmp_path, BAD[rule], name) == [rule]


def test_every_rule_has_a_case():
    assert set(BAD) == {*prose.RULES, "long-sentence", "colons"}


@pytest.mark.parametrize("text", GOOD)
def test_right_text_is_left_alone(text, tmp_path):
    assert rules(tmp_path, text, "module.py") == []


def test_code_and_names_of_a_page_are_left_alone(tmp_path):
    text = "`what is there`, see [it](beside.md).\n\n```bash\necho what is there anew\n```\n\n" + "`a.b`, " * 40
    assert rules(tmp_path, text, "page.md") == []


def test_a_line_may_be_allowed(tmp_path):
    assert rules(tmp_path, "# the row beside it  prose: allow", "module.py") == []
    assert rules(tmp_path, "The row beside it. <!-- prose: allow -->", "page.md") == []


def test_a_finding_names_file_line_and_rule(tmp_path, capsys):
    path = tmp_path / "module.py"
    path.write_text('"""Return x.\n\n    It stands beside y.\n"""\n')
    assert prose.main([str(tmp_path)]) == 1
    assert f"{path}:3: beside: " in capsys.readouterr().out


def test_messages_of_tests_are_left_to_the_code_that_they_quote(tmp_path):
    (tmp_path / "tests").mkdir()
    assert rules(tmp_path, 'assert "FOLDER is no folder here" in text', "tests/test_x.py") == []


@pytest.mark.parametrize(
    ("subject", "status"), [("Read files", 0), ("x" * 72, 0), ("x" * 73, 1), ("Merge " + "x" * 90, 0)]
)
def test_a_commit_has_a_subject_of_at_most_72_characters(subject, status, tmp_path):
    path = tmp_path / "message"
    path.write_text(subject + "\n\n" + "why " * 60)
    assert prose.main(["--commit-message", str(path)]) == status
