"""A test reads every output of the authors' codes, in full or as an extract, or a reason is given."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = json.loads(Path(__file__).with_name("reference_files.json").read_text())


def test_tests_listed_for_a_reference_file_read_it_or_its_fixture():
    texts: dict[str, str] = {}
    for file, entry in FILES.items():
        assert set(entry) in ({"unread"}, {"tests"}, {"tests", "through"}), file
        for test in entry.get("tests", ()):
            path, _, name = test.partition("::")
            text = texts.setdefault(path, (ROOT / path).read_text(encoding="utf-8"))
            assert f"def {name}(" in text or not name, f"{file}: {test} is gone"
            assert entry.get("through", file.rpartition("/")[2]) in text, f"{file}: {test} does not read it"


def test_the_list_names_every_reference_file_and_no_other(shared):
    folder = shared / "reference"
    found = {path.relative_to(folder).as_posix() for path in folder.glob("*/*") if path.name != "README.md"}
    assert found == set(FILES)
