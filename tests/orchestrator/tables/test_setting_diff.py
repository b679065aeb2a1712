"""Footnotes are computed: they list every changed setting and no unchanged one."""

import json

import pytest

from ctvr.orchestrator.importers.ctvr import ACTNET_SETTINGS, MSRVTT_SETTINGS
from ctvr.orchestrator.importers.cvlm import CVLM_SETTINGS
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps.table import paper_settings, papers_of
from ctvr.orchestrator.tables.build import collect, tables
from ctvr.orchestrator.tables.formats import to_csv, to_markdown
from ctvr.orchestrator.tables.setting_diff import DATA_AND_OPTIMISER, between_seeds, differences, footnote
from ctvr.orchestrator.tracking.run_record import RunRecord, as_text


def run(method: str, paper: str, seed: int = 0, tags: dict[str, str] | None = None, **changed: object) -> RunRecord:
    """Return a complete run as MLflow returns it: the paper's settings except those that are changed."""
    known = RunRecord("", "", {"method": method}, {}, {"ctvr.paper": paper}, "", "")
    settings = {**(paper_settings(known) or {}), "stream": paper, "seed": seed, **changed}
    metrics = {f"stream/t2v/{key}": [(2, 20.0)] for key in ("r1", "r5", "r10", "medr", "meanr", "bwf", "rsum")}
    metrics |= {f"stream/v2t/{key}": [(2, 11.0)] for key in ("r1", "r5", "r10", "medr", "meanr", "rsum")}
    full = {"ctvr.complete": "true", "ctvr.stream": paper, "ctvr.paper": paper, **(tags or {})}
    texts = {name: as_text(value) for name, value in settings.items()}
    return RunRecord(f"{method}{seed}", method, texts, metrics, full, "FINISHED", "")


@pytest.mark.parametrize("paper", ["msrvtt-10", "actnet-20"])
@pytest.mark.parametrize("method", ["framefusion_moe", "clip4clip", "lwf", "tvr_plus_cl"])
def test_a_row_with_the_papers_settings_has_its_numbers_and_no_note(method, paper):
    (table,) = tables([run(method, paper, tags={"ctvr.method": method})], papers_of=papers_of)
    assert table.rows[0].paper
    assert "differs from its paper" not in to_markdown(table)


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [
        ("optim.epochs", 2, "optim.epochs 2 (paper 20)"),
        ("data.num_frames", 8, "data.num_frames 8 (paper 12)"),
        ("backbone.weights", "random", "backbone.weights random (paper openai)"),
        ("method.beta", 0.5, "method.beta 0.5 (paper 0.6)"),
        ("method.num_experts", 5, "method.num_experts 5 (paper 10)"),
    ],
)
def test_one_other_setting_is_named_and_takes_the_papers_numbers_away(name, value, note):
    (table,) = tables([run("framefusion_moe", "msrvtt-10", **{name: value})], papers_of=papers_of)
    assert f"differs from its paper in: {note}" in to_markdown(table).replace("\\_", "_")
    assert note in to_csv(table)
    assert not table.rows[0].paper


def test_the_recommended_settings_of_an_embedded_stream_are_all_named():
    made = resolve({"method": "framefusion_moe", "stream": "s"}, {"optim.lr_scale": 50}, ("shapes",)).settings
    paper = resolve({"method": "framefusion_moe", "stream": ""}, {}, ("paper",)).settings
    found = differences(made, paper)
    assert {"method.ffa_direction", "method.lr_text", "optim.lr_scale"} <= set(found)
    assert not {"method.rank", "method.alpha_init"} & set(found)  # no paper publishes them: another footnote names them
    assert footnote({str(n): ("1", "2") for n in range(14)}).endswith(
        "and 2 more settings (column differs of the CSV file)"
    )


def test_the_papers_data_and_optimiser_are_what_the_importers_write():
    for name, written in (("msrvtt", MSRVTT_SETTINGS), ("actnet", ACTNET_SETTINGS), ("cvlm", CVLM_SETTINGS)):
        assert written.items() >= DATA_AND_OPTIMISER[name].items()


def test_seeds_of_other_code_or_versions_are_named_below_the_table():
    made = [{"ctvr.provenance": json.dumps({"torch": version, "weights": "w"})} for version in ("2.5", "2.6", "2.6")]
    runs = [run("lwf", "msrvtt-10", seed, tags) for seed, tags in enumerate(made)]
    assert between_seeds(runs) == "seeds were run with different torch: 2.5 (seed 0) and 2.6 (seed 1, 2)"
    assert between_seeds(runs[1:]) == ""
    assert "different torch" in to_markdown(tables(runs))


def test_other_versions_of_a_stream_are_other_rows():
    runs = [run("lwf", "msrvtt-10", 0, {"ctvr.stream_digest": digest}) for digest in "ab"]
    assert len(collect(runs)) == 2


def test_both_directions_stand_in_one_table():
    records = [run("lwf", "msrvtt-10")]
    keys = {way: [c.key for c in tables(records, direction=way)[0].columns] for way in ("t2v", "v2t", "both")}
    assert "v2t/r1" not in keys["t2v"]
    assert keys["v2t"] == ["v2t/r1", "v2t/r5", "v2t/r10", "v2t/medr", "v2t/meanr", "params_m"]
    assert {"r1", "v2t/r1", "rsum", "v2t/rsum"} <= set(keys["both"])
    (table,) = tables(records, direction="both")
    assert table.rows[0].values["v2t/r1"].mean == 11.0
    assert "V2T R@1" in to_markdown(table)
