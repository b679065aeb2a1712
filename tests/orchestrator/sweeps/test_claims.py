"""Claims are judged by the complete runs of their rows; a claim without runs is reported as such."""

import json
import math
import shutil
from dataclasses import replace

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.sweeps import claims
from ctvr.orchestrator.sweeps.claims import RERUN, ClaimTable, cannot_forget, is_near_chance, judge_claim, judge_table
from ctvr.orchestrator.tables.claims import chosen, names_in, preset_of, read_causes
from ctvr.orchestrator.tables.paper_comparison import ROW
from ctvr.orchestrator.tables.significance import Ranks

R1, BWF, GMACS = "stream/t2v/r1", "stream/t2v/bwf", "cost/video_gmacs"
NAMES = ["framefusion-ffa", "framefusion-forgetting", "tempme-gmacs"]


def ranks_of(share: float, seed: int) -> Ranks:
    """Return ranks of 400 queries, of which a share is found; the seed changes a few of them."""
    return Ranks({f"v{i}#0": 1.0 if (i + 7 * seed) % 400 < 400 * share + seed else 2.0 for i in range(400)}, {})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return complete runs of the rows of three claims, except FrameFusionMoE without FFA, which has an incomplete
    run, and the ranks of each run.
    """
    made = ExecutionConfig(runs=tmp_path_factory.mktemp("recorded") / "runs")
    tracker = made.tracker("few")
    ranks = {}
    shares = {"framefusion_moe": 0.5, "clip4clip": 0.3, "tempme": 0.3, "lora": 0.3}
    for row, share in shares.items():
        for seed in (1, 2, 3):
            tags = {RERUN: "t", ROW: row, "ctvr.protocol": "ctvr", "ctvr.complete": "true"}
            settings = {"method": row, "stream": "few", "seed": seed}
            run = tracker.open_run("few", f"{row}-{seed}", settings, None, tags)
            forgetting = {"framefusion_moe": 1.0, "clip4clip": 9.0}.get(row, 0.0) + 0.1 * seed
            last = {R1: 100 * share, BWF: forgetting, GMACS: 6.0 if row == "tempme" else 10.0}
            tracker.log_history(run, {1: last, 2: last})
            ranks[run] = ranks_of(share, seed)
    tracker.open_run("few", "left", {"seed": 1}, None, {RERUN: "t", ROW: "framefusion_moe:no-ffa"})
    return made.runs, ranks


@pytest.fixture
def execution(recorded, tmp_path, monkeypatch) -> ExecutionConfig:
    """Return a copy of the recorded runs."""
    runs, ranks = recorded
    monkeypatch.setattr(claims, "read_ranks", lambda tracker, run_id: ranks.get(run_id))
    return ExecutionConfig(runs=shutil.copytree(runs, tmp_path / "runs"))


def test_the_verdicts_of_a_table_are_printed_and_written(execution):
    shown = judge_table(ClaimTable("t", preset_of(chosen(NAMES)), "few"), execution)
    assert "3 claims: 2 holds (1 with q < 0.05), 0 smaller than asserted" in shown
    assert "0 undecided, 0 not judged, 1 not run" in shown
    assert "not run (no complete run of framefusion_moe:no-ffa)" in shown
    folder = execution.runs / "tables" / "t"
    found = {each["claim"]["claim"]: each for each in json.loads((folder / "claims.json").read_text())["claims"]}
    assert list(found) == ["framefusion-forgetting", "framefusion-ffa", "tempme-gmacs"]
    assert found["framefusion-forgetting"]["improvement"]["value"] == pytest.approx(8.0)
    assert found["framefusion-forgetting"]["seeds"] == 3
    assert found["framefusion-forgetting"]["base"] == pytest.approx(30.0)  # R@1 of clip4clip
    assert found["framefusion-forgetting"]["q"] == found["framefusion-forgetting"]["improvement"]["p"]  # the only p
    assert found["tempme-gmacs"]["means"] == [6.0, 10.0]
    assert found["framefusion-ffa"]["improvement"]["value"] is None
    assert "| 0.60 x | n/a | holds |" in (folder / "claims.md").read_text()


def test_a_row_with_the_settings_of_another_has_its_runs(execution):
    preset = preset_of(chosen(NAMES))
    shown = judge_table(ClaimTable("t", preset, "few", equal={"framefusion_moe:no-ffa": "clip4clip"}), execution)
    assert "0 not run" in shown
    found = json.loads((execution.runs / "tables" / "t" / "claims.json").read_text())["claims"]
    (result,) = (each for each in found if each["claim"]["claim"] == "framefusion-ffa")
    assert result["means"] == [50.0, 30.0]


def test_r1_is_compared_query_by_query_over_seeds(execution):
    (claim,) = chosen(["framefusion-finetuning"])
    preset = preset_of([claim])
    tracker = execution.existing_tracker()
    rows = {name: tracker.find_runs(tags={ROW: name}) for name in names_in(preset, claim)}
    ranks = {run.run_id: claims.read_ranks(tracker, run.run_id) for found in rows.values() for run in found}
    result = judge_claim(claim, preset, rows, ranks)
    assert result.verdict == "holds"
    assert result.improvement.value == pytest.approx(20.0, abs=0.5)
    assert 0 < result.detectable < 20
    assert result.means == (50.0, 30.0)
    one = judge_claim(claim, preset, {name: found[:1] for name, found in rows.items()}, ranks)
    assert (one.verdict, one.seeds) == ("undecided", 1)
    assert math.isinf(one.detectable)


@pytest.mark.parametrize(
    ("settings", "protocol", "expected"),
    [
        ({"method": "clip4clip"}, "ctvr", False),
        ({"method": "zero_shot"}, "ctvr", True),
        ({"method": "clip4clip", "optim.epochs": "0"}, "ctvr", True),
        ({"method": "framefusion_moe"}, "ctvr", False),
        ({"method": "framefusion_moe", "method.use_tame": "False"}, "ctvr", True),
        ({"method": "framefusion_moe", "method.use_tame": "False"}, "cvlm", False),  # videos are encoded again
        ({"method": "framefusion_moe", "method.num_experts": "1", "method.top_k": "1"}, "ctvr", False),
        ({"method": "upper_bound"}, "ctvr", False),
    ],
)
def test_a_row_cannot_forget_if_neither_its_captions_nor_its_stored_videos_change(
    settings, protocol, expected, tmp_path
):
    tracker = ExecutionConfig(runs=tmp_path / "runs").tracker("few")
    tracker.open_run("few", "one", {"stream": "few", "seed": 1, **settings}, None, {"ctvr.protocol": protocol})
    (run,) = tracker.find_runs(stream="few")
    assert cannot_forget(run) is expected


def test_a_claim_on_forgetting_is_refused_if_its_base_row_cannot_forget(execution):
    (claim,) = chosen(["framefusion-tame-forgetting"])
    claim = replace(claim, than="framefusion_moe:frozen-text")
    preset, tracker = preset_of([claim]), execution.existing_tracker()
    settings = {"method": "framefusion_moe", "method.use_tame": "False", "stream": "few", "seed": 1}
    tags = {RERUN: "t", ROW: claim.than, "ctvr.protocol": "ctvr", "ctvr.complete": "true"}
    tracker.log_history(tracker.open_run("few", "frozen", settings, None, tags), {1: {R1: 30.0, BWF: 0.0}})
    rows = {name: tracker.find_runs(tags={ROW: name}) for name in names_in(preset, claim)}
    result = judge_claim(claim, preset, rows, {})
    assert result.verdict == "not judged"
    assert result.why.startswith("framefusion_moe:frozen-text cannot forget")


def test_a_claim_is_not_judged_if_its_base_row_is_near_chance(execution):
    (claim,) = chosen(["framefusion-finetuning"])
    preset, tracker = preset_of([claim]), execution.existing_tracker()
    rows = {name: tracker.find_runs(tags={ROW: name}) for name in names_in(preset, claim)}
    verdicts = {}
    for share in (0.0025, 0.05, 0.3):  # of 400 captions; chance finds one
        ranks = {run.run_id: ranks_of(share, 0) for found in rows.values() for run in found}
        assert is_near_chance(rows["clip4clip"], ranks, R1) is (share == 0.0025)
        verdicts[share] = judge_claim(claim, preset, rows, ranks).verdict
    assert verdicts[0.0025] == "not judged"
    assert "not judged" not in {verdicts[0.05], verdicts[0.3]}


def test_a_cause_is_named_only_if_its_removal_in_another_table_changes_the_verdict(execution):
    (cause,) = (cause for cause in read_causes() if "tempme-gmacs" in cause.claims)
    table = ClaimTable("t", preset_of(chosen(["tempme-gmacs"])), "few", {"optim.epochs": 2})
    without = ClaimTable("u", table.preset, "few", {**table.settings, **cause.settings})
    tracker = execution.existing_tracker()
    for name, gmacs in (("t", 7.0), ("u", 6.0)):
        for row in ("tempme", "lora"):
            tags = {RERUN: name, ROW: row, "ctvr.protocol": "ctvr", "ctvr.complete": "true"}
            run = tracker.open_run("few", f"{name}-{row}", {"method": row, "stream": "few", "seed": 9}, None, tags)
            last = {GMACS: gmacs if row == "tempme" else 10.0}
            tracker.log_history(run, {1: last})
    for each in tracker.find_runs(tags={RERUN: "t", "ctvr.complete": "true"}):
        if each.settings.get("seed") != "9":
            tracker.set_tags(each.run_id, {RERUN: "old"})
    unexplained = "no cause was found, because no run without a possible cause has another verdict: tempme-gmacs"
    assert unexplained in judge_table(table, execution)
    judge_table(replace(without, settings={**without.settings, "seed": 5}), execution)  # another table
    assert unexplained in judge_table(table, execution)
    judge_table(without, execution)
    explained = f"tempme-gmacs: {cause.cause}. With data.num_frames=4 the verdict is 'holds' (0.60 x)"
    assert explained in judge_table(table, execution)
