"""Every entry names a test that exists and runs, and the page agrees with the data."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.methods.base import Recipe
from ctvr.orchestrator.catalog.methods import methods_text
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.settings.presets import presets_of
from ctvr.orchestrator.sweeps.table import paper_settings
from ctvr.orchestrator.sweeps.verified_notes import verified_note, with_verified
from ctvr.orchestrator.tables.build import tables
from ctvr.orchestrator.tables.verified import Check, Verified, counted, equals, grade_of, of_method, read, text
from ctvr.orchestrator.tracking.run_record import as_text
from tests.orchestrator.tables.test_setting_diff import run

ROOT = Path(__file__).parents[3]
ROWS, ENTRIES = read()


@cache
def functions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def needs(path: str, name: str) -> set[str]:
    """Return the fixtures of a function, and those that they need from the same file."""
    known = functions(path)
    found = {argument.arg for argument in known[name].args.args} if name in known else set()
    return found.union(*(needs(path, each) for each in found if each in known))


def is_skipped(path: str, name: str) -> bool:
    node = functions(path)[name]
    return any("skip" in ast.unparse(part) for part in [*node.decorator_list, *node.body])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.method}-{entry.preset}")
def test_verified_entry_names_an_existing_preset_and_test(entry):
    assert entry.preset in presets_of(entry.method)
    assert re.fullmatch(r"[\w.-]+/[\w.-]+(@[0-9a-f]{7}| \(commit .*not recorded.*\))", entry.source)
    for check in entry.checks:
        path, _, name = check.test.partition("::")
        assert name in functions(path), check.test
        assert not is_skipped(path, name), check.test
        assert ("shared" in needs(path, name)) != check.in_clone, check.test
        assert "compared" in needs(path, name), f"{check.test} does not count its cases"
    keys = [(check.test, check.what) for check in entry.checks]
    assert len(set(keys)) == len(keys)


def test_a_test_that_was_renamed_or_is_skipped_would_be_found():
    assert "test_gone" not in functions("tests/methods/test_tempme.py")
    assert "shared" in needs("tests/methods/test_tempme.py", "test_ablations_equal_the_released_code")
    with pytest.raises(ValueError, match="prove nothing"):
        Check(what="loss", cases=0, tolerance=1e-5, test="")
    with pytest.raises(ValueError, match="not one of forward, loss"):
        Check(what="speed", cases=1, tolerance=1e-5, test="")


def test_every_method_has_one_row_with_tests():
    assert sorted(row.method for row in ROWS) == sorted({*EVERY_METHOD, *CONFIGURATIONS})
    for row in ROWS:
        assert grade_of(row) in ("code", "paper", "ours")
        assert row.against.strip(), row.method
        assert row.tests, row.method
        assert all((ROOT / test).is_file() for test in row.tests), row.method


def test_grades_and_comparisons_are_printed(capsys):
    assert main(["methods", "--verified"]) == 0
    shown = capsys.readouterr().out
    assert shown.strip() == text()
    assert "clip4clip, preset original: ArrowLuo/CLIP4Clip@508ffa3" in shown
    assert "upper_bound: ours; against CTVR, section 4.3.1\n" in shown


def test_one_count_of_verified_methods_stands_in_all_places():
    compared, methods, code = map(int, re.findall(r"\d+", counted()))
    assert compared == len({entry.method for entry in ENTRIES})
    assert code == sum(grade_of(row) == "code" for row in ROWS)
    assert counted() in methods_text()
    assert counted() in text()
    readme, page = ((ROOT / name).read_text() for name in ("README.md", "REPRODUCIBILITY.md"))
    assert f"{methods} methods and strategies on one training loop.** Tests compare {compared} of them" in readme
    assert f"Tests compare {compared} of {methods} methods with their authors' code. {code} of these" in page


def test_row_states_its_equality_with_the_release():
    record = run("clip4clip", "msrvtt-10")
    note = verified_note(record)
    start = "the preset original is compared with the release: forward, loss, gradients, steps, schedule, recipe and "
    assert note.startswith(start + "evaluation match ArrowLuo/CLIP4Clip@")
    differs = "this row differs from it in its forward pass (method.frame_norm none (original l2)"
    assert differs in note
    assert "; recipe differs in: method.lr 1e-06 (original 1e-07)," in note
    assert note.endswith("more (see ctvr methods clip4clip --preset original)")
    (table,) = tables([record])
    assert with_verified(table, [record]).rows[0].marks[-1] == note
    settings = {**(paper_settings(record) or {}), **presets_of("clip4clip")["original"]}
    own = run("clip4clip", "msrvtt-10", **{name: value for name, value in settings.items() if name != "method"})
    assert verified_note(own).endswith("recipe: preset original")
    assert verified_note(own).startswith("forward, loss, gradients, steps, schedule, recipe and evaluation match")
    given = {name: value for name, value in own.settings.items() if name != "method"}
    trained = run("clip4clip", "msrvtt-10", **{**given, "method.lr": "3e-06"})
    assert verified_note(trained).startswith("forward, loss and gradients match ArrowLuo/CLIP4Clip@508ffa3 within ")
    assert "recipe differs in: method.lr 3e-06 (original 1e-07)" in verified_note(trained)
    other = run("clip4clip", "msrvtt-10", **{**given, "method.loss_reduction": "sum"})
    assert "this row differs from it in its loss (method.loss_reduction sum (original mean))" in verified_note(other)
    assert verified_note(run("upper_bound", "msrvtt-10")) == ""
    said = "forward, loss, gradients, steps and recipe match divyam3897/UCL@cfaa81d within 1e-05 on seeded weights"
    assert equals(of_method("lump")[0]) == said


def test_the_fixtures_stay_below_their_size_limit():
    assert sum(file.stat().st_size for file in (ROOT / "tests" / "methods" / "fixtures").iterdir()) <= 2_600_000


def entry_of(method: str) -> Verified:
    return of_method(method)[0]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.method}-{entry.preset}")
def test_an_entry_names_its_authors_recipe_and_a_row_claims_one_only_if_it_exists(entry):
    known = presets_of(entry.method)
    theirs = {"released", "original"} & set(known)
    assert not theirs or entry.preset in theirs
    record = run(entry.method, "msrvtt-10", tags={"ctvr.method": entry.method})
    if isinstance(known[entry.preset], Recipe):
        assert known[entry.preset]
        record.settings.update({name: as_text(value) for name, value in known[entry.preset].items()})
        assert f"recipe: preset {entry.preset}" in verified_note(record)
    else:
        assert verified_note(record).endswith("no recipe of the authors was compared")


@pytest.mark.parametrize(
    "method", ["dsl", "ewc", "image_finetune", "image_progressive", "image_si", "image_der", "image_lump"]
)
def test_an_empty_preset_is_not_a_recipe(method):
    assert presets_of(method)[entry_of(method).preset] == {}
    assert "recipe: preset" not in verified_note(run(method, "msrvtt-10"))


def test_a_recipe_of_another_release_or_with_values_of_ours_says_so():
    record = run("evit", "msrvtt-10", tags={"ctvr.method": "evit"})
    note = verified_note(record)
    assert "match youweiliang/evit (commit not recorded)" in note
    assert "recipe of LunarShen/TempMe (commit not recorded) differs in: " in note
    record = run("lwf", "msrvtt-10", **{"optim.epochs": "7"})
    recipe = presets_of("lwf")["original"]
    record.settings.update({name: as_text(value) for name, value in recipe.items()})
    assert verified_note(record).endswith(
        "recipe: preset original; chosen by us, because the release does not state them: optim.epochs 7"
    )


def test_a_default_run_of_qdc_is_not_the_released_recipe():
    note = verified_note(run("qdc", "msrvtt-10"))
    assert "recipe differs in: " in note
    assert "recipe: preset" not in note
