"""The papers' claims: each names rows that exist and the effect that its paper prints; verdicts follow the rule."""

import json
import math
from dataclasses import replace

import pytest

from ctvr.orchestrator.streams.load import BENCHMARKS
from ctvr.orchestrator.tables.claims import (
    FORGETTING,
    MAIN,
    Claim,
    chosen,
    has_images,
    judge,
    metric_of,
    names_in,
    needs_images,
    preset_of,
    read,
    read_causes,
)
from ctvr.orchestrator.tables.claims_text import counts, list_text, to_json, to_markdown, to_text
from ctvr.orchestrator.tables.paper_numbers import FOLDER, paper_numbers, published_tables
from ctvr.orchestrator.tables.presets import load_preset
from ctvr.orchestrator.tables.table import Difference
from tests.refusing import refuses

PAPERS, CLAIMS = read()
CTVR = ("msrvtt-10", "msrvtt-20", "actnet-10", "actnet-20")
PRINTED_IN = {"ctvr-table1": CTVR, "worlds": CTVR, "cvlm-table1": ("cvlm",)}
FR_TASKS = 4  # BMU-MoCo prints forgetting as a sum over four tasks
CLAIM = Claim(
    claim="x", paper="bmu", place="p", says="s", table="t", row="a", than="b", column="r1", better="higher", effect=20.0
)


def printed(claim: Claim) -> list[dict[str, tuple[float, float]]]:
    """Return column -> (row, other) of each data set for which the paper prints both rows."""
    found = []
    if claim.table in published_tables():
        data = json.loads((FOLDER / "tables" / f"{claim.table}.json").read_text(encoding="utf-8"))
        for stream, head in data["streams"].items():
            rows = {row["row"]: dict(zip(head["columns"], row["values"].get(stream, []))) for row in data["rows"]}
            if rows.get(claim.row) and rows.get(claim.than):
                found.append((rows[claim.row], rows[claim.than]))
    for stream in PRINTED_IN.get(claim.table, ()) if claim.place.startswith("Table") else ():
        methods = (paper_numbers(stream) or {})["methods"]
        found.append((methods[claim.row]["values"], methods[claim.than]["values"]))
    return [
        {key: (_mean(row[key]), _mean(other[key])) for key in row if key in other and row[key] and other[key]}
        for row, other in found
    ]


def _mean(value: float | list[float]) -> float:
    return value[0] if isinstance(value, list) else value


def test_a_claim_names_a_paper_and_two_rows_and_every_paper_has_one():
    assert len({claim.claim for claim in CLAIMS}) == len(CLAIMS) > 40
    assert {claim.paper for claim in CLAIMS} == set(PAPERS) - {"new"}
    for claim in CLAIMS:
        rows = {row.name for row in load_preset(claim.table).rows}
        assert {claim.row, claim.than} <= rows, claim.claim
        assert claim.row != claim.than
        assert claim.place
        assert claim.says
        assert (claim.effect > 0) + (claim.margin > 0) + (claim.at_most > 0) <= 1
        metric_of(claim.column, "ucl" if needs_images(claim) else "ctvr")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.claim)
def test_the_effect_is_the_smallest_one_that_the_paper_prints_relative_to_its_base(claim):
    sign = 1 if claim.better == "higher" else -1
    found = []
    for columns in printed(claim):
        name = base = claim.column
        if name == "forgetting":
            name = next(each for each in ("forgetting", *FORGETTING.values()) if each in columns)
            base = next(each for each in MAIN.values() if each in columns)
        if name in columns:
            row, other = columns[name]
            points = sign * (row - other) / (FR_TASKS if name == "fr" else 1)
            found.append(row / other if claim.at_most else 100 * points / columns[base][1])
    if claim.at_most:
        assert max(found) <= claim.at_most <= max(found) + 0.01
    elif claim.margin:
        assert min(found) == pytest.approx(-claim.margin, abs=0.006)
    elif found:
        assert claim.effect == pytest.approx(max(0, min(found)), abs=0.006)  # 0: a printed data set contradicts it
        assert sum(found) > 0
    else:
        assert claim.effect == 0


def test_a_cause_names_claims_and_what_removes_it():
    names = {claim.claim for claim in CLAIMS}
    for cause in read_causes():
        assert set(cause.claims) <= names
        assert cause.cause
        assert cause.settings or cause.stream


@pytest.mark.slow
def test_the_rows_of_all_claims_are_one_table_with_each_run_once():
    claims = chosen([])
    preset = preset_of(claims)
    runs = [json.dumps([row.method, row.presets, row.settings, row.on, row.only], default=list) for row in preset.rows]
    assert len(set(runs)) == len(runs) < 2 * len(claims)
    assert not any(row.searched for row in preset.rows)
    for claim in claims:
        row, than = (next(each for each in preset.rows if each.name == name) for name in names_in(preset, claim))
        table = load_preset(claim.table)
        for made, name in ((row, claim.row), (than, claim.than)):
            own = next(each for each in table.rows if each.name == name)
            for stream in ("worlds-5", "shapes-5", "msrvtt"):
                assert preset.settings_of(made, [stream]) == table.settings_of(own, [stream]), (claim.claim, stream)
            assert (made.method, made.presets) == (own.method, own.presets)


def test_claims_on_images_need_a_stream_of_images():
    assert [has_images(name) for name in ("shapes-images", "cifar-10", "cifar-10@2", "worlds-5", "msrvtt-10")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert {claim.claim for claim in CLAIMS} == {each.claim for kind in (True, False) for each in chosen([], kind)}
    assert "msrvtt-10" in BENCHMARKS
    with refuses("--stream", where="--only bmu-images"):
        chosen(["bmu-images"])
    with refuses("'camoe-dls'", "'camoe-dsl'"):
        chosen(["camoe-dls"])


@pytest.mark.parametrize(
    ("low", "high", "more", "verdict", "note"),
    [
        (0.5, 4.0, {}, "holds", ""),
        (0.5, 1.5, {}, "smaller than asserted", "the direction holds"),
        (-1.0, 4.0, {}, "undecided", ""),
        (-1.0, 1.9, {}, "smaller than asserted", ""),  # even the largest plausible effect is below 20 % of 10
        (-3.0, -1.0, {}, "contradicted", ""),
        (-3.0, -1.0, {"effect": 0.0}, "contradicted", ""),
        (-3.0, 0.5, {"effect": 0.0}, "undecided", ""),
        (0.0, 0.0, {"effect": 0.0}, "smaller than asserted", ""),  # two equal rows
        (-0.5, 3.0, {"effect": 0.0, "margin": 8}, "holds", ""),
        (-1.5, 3.0, {"effect": 0.0, "margin": 8}, "undecided", ""),
        (-4.0, -0.9, {"effect": 0.0, "margin": 8}, "contradicted", ""),
        (-math.inf, math.inf, {}, "undecided", ""),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_asserted_effect(low, high, more, verdict, note):
    value = (low + high) / 2 if math.isfinite(low) else 1.0
    difference = Difference(value, low, high, 0.5)
    for better, given in (("higher", difference), ("lower", difference.turned())):
        claim = Claim(**{**vars(CLAIM), "better": better, **more})
        result = judge(claim, given, 1.0, (1.0, 2.0), 10.0, 3)
        assert (result.verdict, result.note) == (verdict, note)
        assert result.improvement == difference


def test_an_asserted_effect_scales_with_our_base_row():
    verdicts = {base: judge(CLAIM, Difference(1.5, 0.5, 2.5, 0.01), 1.0, (1.0, 2.0), base, 3) for base in (5.0, 40.0)}
    assert [(each.asserted, each.verdict) for each in verdicts.values()] == [
        (1.0, "holds"),
        (8.0, "smaller than asserted"),
    ]


def test_a_claim_on_a_cost_is_judged_by_the_ratio():
    claim = Claim(**{**vars(CLAIM), "effect": 0.0, "at_most": 0.66, "column": "gmacs", "better": "lower"})
    expected = {6.5: "holds", 6.7: "smaller than asserted", 10.0: "contradicted", math.nan: "undecided"}
    for row, verdict in expected.items():
        assert judge(claim, Difference(), math.nan, (row, 10.0), 10.0, 3).verdict == verdict


def test_forgetting_has_the_metric_of_the_streams_protocol():
    assert metric_of("forgetting", "ctvr") == "stream/t2v/bwf"
    assert metric_of("forgetting", "cvlm") == "stream/t2v/fr"
    assert metric_of("forgetting", "ucl") == "stream/knn/forgetting"
    assert metric_of("gmacs", "ctvr") == "cost/video_gmacs"


def test_the_texts_count_the_verdicts_and_hide_no_claim():
    claims = CLAIMS[:3]
    differences = (Difference(5, 4, 6, 0.001), Difference(0, -9, 9, 0.9), Difference(-5, -6, -4, 0.001))
    results = [
        replace(judge(Claim(**{**vars(claim), "better": "higher"}), each, 3.25, (1.0, 2.0), 10.0, 3), q=q)
        for claim, each, q in zip(claims, differences, (0.003, 0.9, 0.003))
    ]
    results[2] = replace(results[2], cause="only two frames. With data.num_frames=4 the verdict is 'holds' (1.00)")
    said = counts(results)
    assert said == (
        "3 claims: 1 holds (1 with q < 0.05), 0 smaller than asserted, 1 contradicted, 1 undecided, 0 not judged, "
        "0 not run"
    )
    shown, written = to_text(results, "worlds-5"), to_markdown(results, "worlds-5")
    for claim in claims:
        assert claim.claim in shown
        assert f"| `{claim.claim}` |" in written
        assert claim.claim in list_text()
    assert said in shown
    assert shown.count("; could be seen: 3.2") == 1
    assert said in written
    assert "| higher by 2.02 % (0.20 points) | 5.00 [4.00, 6.00] p=0.001* q=0.003 | 3.2 | holds |" in written
    assert f"- {claims[2].claim}: {results[2].cause}\n" in written
    assert "no cause was found" not in written
    unexplained = to_markdown([replace(results[2], cause="")], "worlds-5")
    assert (
        f"- no cause was found, because no run without a possible cause has another verdict: {claims[2].claim}\n"
        in (unexplained)
    )
    alone = judge(claims[0], Difference(), math.nan, (math.nan, 1.0), math.nan, 3)
    data = json.loads(to_json([alone], "worlds-5", {"data.num_frames": 4}))
    assert data["settings"] == {"data.num_frames": "4"}
    assert data["claims"][0]["improvement"]["value"] is None
    assert data["claims"][0]["claim"]["claim"] == claims[0].claim
