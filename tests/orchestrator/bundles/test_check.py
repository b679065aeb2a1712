"""A bundle is consistent exactly if its table and its digest follow from its ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctvr.orchestrator.bundles.bundle import Bundle, read_bundle, to_bytes
from ctvr.orchestrator.bundles.check import inconsistencies, seal
from ctvr.orchestrator.bundles.from_ranks import final_ranks, table_of
from ctvr.orchestrator.tables.intervals import differences
from tests.orchestrator.bundles.plantings import FORGED, OPEN, SEALED, drawn, plant
from tests.orchestrator.bundles.small_bundle import copy_of, make_bundle

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = sorted((ROOT / "examples" / "bundles").glob("*.zip"))


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return make_bundle()


def written(bundle: Bundle, folder: Path) -> Bundle:
    (folder / "b.zip").write_bytes(to_bytes(bundle))
    return read_bundle(folder / "b.zip")


def test_a_published_bundle_is_consistent_after_it_was_written_and_read(bundle, tmp_path):
    assert inconsistencies(bundle) == []
    assert inconsistencies(written(bundle, tmp_path)) == []


def test_its_cells_and_comparisons_are_those_of_a_table(bundle):
    rows, ranks = {row["label"]: row for row in table_of(bundle)}, final_ranks(bundle)
    first = [[[ranks[run].of[query].first for query in ranks[run].of] for run in row["runs"]] for row in rows.values()]
    videos = [query.partition("#")[0] for query in bundle.about["queries"]]
    for row, chances in zip(rows.values(), first):
        assert row["cells"]["r1"][0] == pytest.approx(100 * sum(map(sum, chances)) / len(chances) / len(videos))
    best = next(place for place, row in enumerate(rows.values()) if row["is_best"])
    fixed = [row["cells"]["params_m"][0] == 0 for row in rows.values()]
    found = differences(first, best, videos, fixed=fixed)
    for row, difference in zip(rows.values(), found):
        if not row["is_best"]:
            expected = [difference.value, difference.low, difference.high, difference.p, difference.detectable]
            assert row["vs_best"] == pytest.approx(expected)


@pytest.mark.parametrize("name", drawn(OPEN, SEALED))
def test_a_drawn_fault_makes_a_bundle_inconsistent(bundle, name, tmp_path):
    assert inconsistencies(written(plant(bundle, name), tmp_path))


def test_every_listed_fault_is_found_and_the_digest_is_right_where_it_was_recomputed(bundle):
    for name in (*OPEN, *SEALED):
        found = inconsistencies(plant(bundle, name))
        assert found, name
        assert any(each.startswith("digest") for each in found) == (name in OPEN), name


def test_ranks_of_queries_before_their_task_are_found_even_if_everything_is_recomputed(bundle):
    about, ranks = copy_of(bundle)
    ranks["all"][2, 0, 0, -1] = 1
    (found,) = inconsistencies(seal(about, ranks))
    assert bundle.about["runs"][2]["id"][:8] in found


def test_a_forged_bundle_is_consistent(bundle):
    assert {name: inconsistencies(plant(bundle, name)) for name in FORGED} == {name: [] for name in FORGED}


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_a_bundle_of_the_repository_is_consistent_and_small(file):
    assert inconsistencies(read_bundle(file)) == []
    assert file.stat().st_size < 10**6


def test_the_repository_has_a_bundle():
    assert PUBLISHED


@pytest.mark.slow
def test_a_check_without_any_cache_loads_no_torch(bundle, tmp_path):
    about, ranks = copy_of(bundle)
    for each in about["runs"]:
        each["tags"]["ctvr.presets"] = "shapes"
        each["settings"] |= {"method.lr": "1e-6", "method.base": "xpool"}
    (tmp_path / "b.zip").write_bytes(to_bytes(seal(about, ranks)))
    code = "import sys; from ctvr.orchestrator.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    words = ["runs", "verify", "b.zip", "--queries", "0"]
    variables = {**os.environ, "CTVR_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "0 False", done.stdout + done.stderr


def test_tags_and_settings_that_no_table_can_use_are_a_fault_and_not_a_traceback(bundle):
    about, ranks = copy_of(bundle)
    about["runs"][0]["tags"]["ctvr.stream_content"] = "\ud800"
    about["table"] = {"rows": 3}
    assert inconsistencies(Bundle(about, ranks))


def test_content_that_json_cannot_encode_again_is_a_fault_and_not_a_traceback(bundle):
    about, ranks = copy_of(bundle)
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert inconsistencies(Bundle({**about, "more": nested}, ranks))
    assert inconsistencies(Bundle({**about, "more": float("nan")}, ranks))
