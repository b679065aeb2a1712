"""Tables come from records alone: who is in, what is averaged, what stands beside it, what is said about it."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from orchestrator import report
from orchestrator.config import ConfigError
from orchestrator.report import build, collect, holm, paired_bootstrap, paper_numbers, tables, to_markdown, write
from orchestrator.tracking import RunRecord

STREAMS = ("msrvtt-10", "msrvtt-20", "actnet-10", "actnet-20")
KEYS = ("r1", "r5", "r10", "medr", "meanr", "bwf")


def run(
    method: str = "lwf", seed: int = 0, r1: float = 24.0, tags: dict | None = None, **settings: object
) -> RunRecord:
    """A complete run of two tasks."""
    metrics = {f"stream/t2v/{key}": [(1, r1 + 5), (2, r1 + n)] for n, key in enumerate(KEYS)}
    metrics |= {
        "task_01/t2v/r1": [(1, 60.0), (2, 50.0)],
        "task_01/t2v/r1_own": [(1, 60.0), (2, 58.0)],
        "task_02/t2v/r1": [(2, 40.0)],
        "task_02/t2v/r1_own": [(2, 45.0)],
        "stream/t2v/bwf_union": [(2, 10.0)],
        "cost/trained_parameters": [(2, 46_800_000.0)],
        "train/loss/nce": [(900, 0.1)],
    }
    full = {"method": method, "stream": "msrvtt-10", "seed": str(seed), "evaluation.split": "test", **settings}
    full_tags = {"ctvr.complete": "true", "ctvr.stream": "msrvtt-10", "ctvr.protocol": "ctvr", **(tags or {})}
    return RunRecord(f"{method}-{seed}-{r1}", f"{method}-{seed}", full, metrics, full_tags, "FINISHED", "", seed)


PAPER = {"ctvr.paper": "msrvtt-10"}


# --- who is in, and what is averaged


def test_seeds_of_one_configuration_are_one_row_with_the_sample_deviation():
    (row,) = collect([run(seed=s, r1=r) for s, r in enumerate((24.0, 25.0, 27.0))])
    assert row.seeds == ("0", "1", "2")
    assert row.values["r1"].mean == pytest.approx(np.mean([24, 25, 27]))
    assert row.values["r1"].std == pytest.approx(np.std([24, 25, 27], ddof=1))
    assert row.values["bwf"].mean == pytest.approx(row.values["r1"].mean + 5)
    assert row.values["params_m"].mean == pytest.approx(46.8)
    assert row.extra["stream/t2v/bwf_union"].mean == 10.0
    assert "train/loss/nce" not in row.extra


def test_one_seed_has_no_deviation():
    (row,) = collect([run()])
    assert math.isnan(row.values["r1"].std)
    assert "24.00 |" in to_markdown(tables([run()]))


def test_incomplete_runs_are_left_out_and_counted():
    records = [run(), run(seed=1, tags={"ctvr.complete": "false"})]
    assert len(collect(records)[0].runs) == 1
    assert "1 incomplete runs are left out" in to_markdown(tables(records))


def test_a_metric_that_stopped_before_the_last_task_is_not_available():
    record = run()
    record.metrics["stream/t2v/bwf"] = [(1, 0.0)]
    (row,) = collect([record])
    assert math.isnan(row.values["bwf"].mean)
    assert "n/a" in to_markdown(tables([record]))


def test_a_seed_run_twice_counts_once_the_later_one():
    early, late = run(seed=3, r1=20.0), run(seed=3, r1=30.0)
    (row,) = collect([late, RunRecord(**{**vars(early), "started": 1})])
    assert row.seeds == ("3",)
    assert row.values["r1"].mean == 30.0


def test_other_settings_are_another_row_and_the_label_tells_them_apart():
    rows = collect([run(**{"method.weight": w, "evaluation.chunk": c}) for w, c in [("1.0", "512"), ("2.0", "64")]])
    assert [row.label for row in rows] == ["lwf (method.weight=1.0)", "lwf (method.weight=2.0)"]
    presets = [run(tags={"ctvr.presets": p}, **{"method.weight": w}) for p, w in [("", "1.0"), ("released", "2.0")]]
    assert [row.label for row in collect(presets)] == ["lwf (paper)", "lwf (released)"]


def test_the_upper_bound_is_last_and_zero_shot_first():
    rows = collect([run(m) for m in ("upper_bound", "a_new_method", "framefusion_moe", "lwf", "zero_shot")])
    assert [r.method for r in rows] == ["zero_shot", "lwf", "framefusion_moe", "a_new_method", "upper_bound"]


def test_streams_get_their_own_tables():
    made = tables([run(), run(tags={"ctvr.stream": "shapes-5"})])
    assert [table.stream for table in made] == ["msrvtt-10", "shapes-5"]


def test_without_a_complete_run_there_is_no_table():
    with pytest.raises(ConfigError, match="none of the 1 runs is complete"):
        build(None, [run(tags={"ctvr.complete": "false"})])  # type: ignore[arg-type]


# --- what stands beside it, and what is said about it


def test_settings_that_no_paper_publishes_are_named_below_the_table():
    records = [run(**{"method.weight": "0.5", "base.lr": "1e-06"}), run("zero_shot", r1=20.0)]
    text = to_markdown(tables(records))
    assert "set by us, since no paper publishes them for this row: method.weight=0.5, base.lr=1e-06" in text
    assert text.count("set by us") == 1


def test_the_papers_number_and_deviation_stand_beside_ours():
    (table,) = tables([run("framefusion_moe", tags=PAPER)])
    assert table.rows[0].paper["r1"].mean == 25.87
    text = to_markdown(table)
    assert "*25.87±0.33*" in text
    assert "arXiv:2503.10111, Table 1" in text


def test_no_paper_beside_another_stream_or_validation_numbers():
    assert not collect([run("framefusion_moe")])[0].paper
    assert not collect([run("framefusion_moe", tags=PAPER, **{"evaluation.split": "val"})])[0].paper
    assert not collect([run("a_new_method", tags=PAPER)])[0].paper


@pytest.mark.parametrize(
    ("tags", "settings", "text"),
    [
        ({}, {"evaluation.select": "best"}, "best-on-test"),
        ({}, {"evaluation.split": "val"}, "measured on validation videos"),
        ({"ctvr.mark": "no validation split: x"}, {}, "no validation split"),
        ({"ctvr.transductive": "true"}, {}, "transductive"),
        ({"ctvr.note": "T is 2, the paper has 1"}, {}, "T is 2"),
        ({"ctvr.searched": "lwf:24"}, {}, "best of 24 trials"),
        (PAPER, {"backbone.name": "tiny-clip"}, "backbone tiny-clip"),
    ],
)
def test_what_a_reader_must_know_is_said(tags, settings, text):
    assert text not in to_markdown(tables([run()]))
    assert text in to_markdown(tables([run(tags=tags, **settings)]))


def test_the_search_of_one_method_is_not_said_of_its_baselines():
    assert "trials" not in to_markdown(tables([run("clip4clip", tags={"ctvr.searched": "lwf:24"})]))


def test_runs_on_different_versions_of_a_stream_are_not_compared_silently():
    records = [run(tags={"ctvr.stream_digest": "a"}), run("zscl", tags={"ctvr.stream_digest": "b"})]
    assert "different versions" in to_markdown(tables(records))


# --- statistics


def test_the_bootstrap_sees_no_difference_between_equals_and_a_large_one_at_once():
    rng = np.random.default_rng(0)
    ranks = rng.integers(1, 5, 400)
    assert paired_bootstrap(ranks, ranks) == 1.0
    assert paired_bootstrap(ranks, np.full(400, 9)) < 0.001
    assert paired_bootstrap([ranks, ranks], ranks) == 1.0


def test_the_bootstrap_agrees_with_drawing_queries_one_by_one():
    rng = np.random.default_rng(1)
    a, b = rng.integers(1, 4, 60), rng.integers(1, 5, 60)
    hit = (a <= 1).astype(float) - (b <= 1)
    drawn = hit[rng.integers(0, 60, (20_000, 60))].mean(axis=1)
    by_hand = np.mean(np.abs(drawn - hit.mean()) >= abs(hit.mean()) - 1e-12)
    assert paired_bootstrap(a, b, seed=3) == pytest.approx(by_hand, abs=0.02)
    assert paired_bootstrap(a, b, seed=3) == paired_bootstrap(a, b, seed=3)
    assert paired_bootstrap(b, a, seed=3) == pytest.approx(by_hand, abs=0.02)


def test_the_bootstrap_keeps_its_level():
    rng = np.random.default_rng(2)
    p = [paired_bootstrap(*rng.integers(1, 4, (2, 300)), seed=n, samples=500) for n in range(200)]
    assert np.mean(np.array(p) < 0.05) < 0.1


def test_ranks_of_other_queries_cannot_be_paired():
    with pytest.raises(ValueError, match="3 and 2 queries"):
        paired_bootstrap([1, 2, 3], [1, 2])


def test_holm_is_the_step_down_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    for p in product([0.001, 0.02, 0.5], repeat=3):
        assert all(a >= b for a, b in zip(holm(p), p))
        assert sorted(holm(p)) == [holm(p)[i] for i in sorted(range(3), key=lambda i: p[i])]


class Files:
    """Stands in for the tracker: serves ranks.json of some runs."""

    def __init__(self, folder: Path, ranks: dict[str, list[float]]) -> None:
        self.folder, self.ranks = folder, ranks

    def download(self, run_id: str, artifact: str) -> Path:
        if run_id not in self.ranks:
            raise FileNotFoundError(artifact)
        names = [f"video{n}#0" for n in range(len(self.ranks[run_id]))]
        path = self.folder / f"{run_id}.json"
        path.write_text(json.dumps({"query ids": names, "ranks": self.ranks[run_id]}))
        return path


def test_a_row_that_cannot_be_told_from_the_best_says_so(tmp_path):
    records = [run("lwf", r1=30.0), run("zscl", r1=29.5), run("xpool", r1=10.0), run("vr_lwf", r1=20.0)]
    hits = {"lwf": 150, "zscl": 148, "xpool": 50}
    ranks = {r.run_id: [1.0] * (n := hits[r.settings["method"]]) + [7.0] * (500 - n) for r in records[:3]}
    (table,) = build(Files(tmp_path, ranks), records)  # type: ignore[arg-type]
    tied = {row.method: any("not distinguishable" in mark for mark in row.marks) for row in table.rows}
    assert tied == {"lwf": False, "zscl": True, "xpool": False, "vr_lwf": False}
    p = {row.method: row.p_best for row in table.rows}
    assert p["xpool"] < 0.01 < 0.05 < p["zscl"]
    assert math.isnan(p["lwf"])
    assert math.isnan(p["vr_lwf"])


# --- CVLM


def cvlm(method: str = "bmu_moco", seed: int = 0) -> RunRecord:
    """Two tasks; what is recorded agrees with the matrix [[60], [50, 40]]."""
    own = {"task_01/t2v/r1_own": [(1, 60.0), (2, 50.0)], "task_02/t2v/r1_own": [(2, 40.0)]}
    means = {"r1_mean": 45.0, "fr": 10.0, "hm": 2 * 50 * 45 / 95, "r1": 33.0}
    metrics = {**own, **{f"stream/t2v/{key}": [(1, 60.0), (2, value)] for key, value in means.items()}}
    tags = {"ctvr.complete": "true", "ctvr.stream": "shapes-cvlm", "ctvr.protocol": "cvlm"}
    return RunRecord(f"{method}{seed}", method, {"method": method, "seed": seed}, metrics, tags, "FINISHED", "")


def test_cvlm_tables_have_fr_and_hm_and_a_column_for_every_task():
    (table,) = tables([cvlm(), cvlm("base_moco")])
    assert [c.key for c in table.columns] == ["r1", "fr", "hm", "task_01/r1", "task_01/fr", "task_02/r1", "params_m"]
    values = {key: value.mean for key, value in table.rows[0].values.items()}
    assert values["r1"] == 45.0
    assert values["task_01/r1"] == 50.0
    assert values["fr"] == values["task_01/fr"] == 10.0
    assert table.rows[0].curve[-1][:2] == (2, 45.0)
    assert "HM ↑" in to_markdown(table)


# --- files


def test_tables_and_figures_are_written_whole(tmp_path):
    records = [run("lwf", 0, 24.0), run("lwf", 1, 25.0), run("a/b ../c", tags=PAPER)]
    paths = write(tables(records), tmp_path / "tables")
    names = [path.name for path in paths]
    assert names[:4] == ["msrvtt-10.md", "msrvtt-10.tex", "msrvtt-10.csv", "msrvtt-10_r1.png"]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(names)
    assert all(path.parent == tmp_path / "tables" for path in paths)
    for path in paths[3:]:
        assert path.read_bytes().startswith(b"\x89PNG")
    again = [path.read_bytes() for path in write(tables(records), tmp_path / "again")]
    assert again == [path.read_bytes() for path in paths]


def test_the_matrices_are_means_over_seeds():
    other = run(seed=1)
    other.metrics["task_01/t2v/r1_own"] = [(1, 50.0), (2, 48.0)]
    (row,) = collect([run(), other])
    assert row.matrices == {"own gallery": [[55.0], [53.0, 45.0]], "all galleries so far": [[60.0], [50.0, 40.0]]}


# --- the published numbers


@pytest.mark.parametrize("stream", STREAMS)
def test_published_ctvr_numbers_are_arithmetically_possible(stream):
    paper = paper_numbers(stream)
    assert paper is not None
    assert paper["stream"] == stream
    assert len(paper["methods"]) == 12
    for name, entry in paper["methods"].items():
        values = entry["values"]
        assert set(values) == {*KEYS, "params_m"}, name
        means = {key: values[key][0] for key in KEYS}
        assert 0 <= means["r1"] <= means["r5"] <= means["r10"] <= 100, name
        assert 1 <= means["medr"] <= means["meanr"], name  # ranks are skewed to the right in every published row
        assert (means["medr"] <= 10) == (means["r10"] >= 50) or abs(means["r10"] - 50) < 3, name
        assert all(values[key][1] >= 0 for key in KEYS), name
        assert abs(means["bwf"]) < 2, name
        assert entry["source"].endswith(("Table 1", "Table 2")), name


def test_published_zero_shot_does_not_depend_on_the_tasks():
    for a, b in (STREAMS[:2], STREAMS[2:]):
        assert paper_numbers(a)["methods"]["zero_shot"]["values"] == paper_numbers(b)["methods"]["zero_shot"]["values"]


def test_published_trained_parameters_are_those_of_the_paper():
    wanted = {"zero_shot": 0.0, "clip4clip": 151.28, "xpool": 152.59, "moe_adapter": 59.8, "framefusion_moe": 46.8}
    for stream in STREAMS:
        methods = paper_numbers(stream)["methods"]
        assert {name: methods[name]["values"]["params_m"] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("stream", "method", "r1", "bwf"),
    [  # cells read from the papers by eye, one of each stream and some of each column
        ("msrvtt-10", "framefusion_moe", [25.87, 0.33], [-0.45, 0.22]),
        ("msrvtt-20", "framefusion_moe", [25.16, 0.14], [-0.70, 0.25]),
        ("msrvtt-20", "lwf", [22.06, 0.44], [1.65, 0.72]),
        ("actnet-10", "moe_adapter", [16.63, 0.55], [-0.15, 0.08]),
        ("actnet-20", "vr_lwf", [17.21, 0.36], [0.58, 0.13]),
        ("actnet-20", "upper_bound", [19.78, 0.17], [0.16, 0.31]),
        ("actnet-10", "structalign", [18.26, 0.20], [-0.68, 0.40]),
    ],
)
def test_published_cells_are_the_printed_ones(stream, method, r1, bwf):
    values = paper_numbers(stream)["methods"][method]["values"]
    assert values["r1"] == r1
    assert values["bwf"] == bwf


def test_published_cvlm_rows_recompute_or_say_that_they_do_not():
    paper = paper_numbers("cvlm")
    assert paper is not None
    assert len(paper["methods"]) == 8
    for name, entry in paper["methods"].items():
        values = {key: value[0] for key, value in entry["values"].items()}
        final = sum(values[f"task_0{t}/r1"] for t in range(1, 6)) / 5
        lost = sum(values[f"task_0{t}/fr"] for t in range(1, 5))
        current = final + lost / 5
        recomputed = {"r1": final, "fr": lost, "hm": 2 * current * final / (current + final)}
        agrees = all(abs(recomputed[key] - values[key]) < 0.015 for key in recomputed)
        assert agrees == ("notes" not in entry), name
        assert values["task_01/r1"] + values["task_01/fr"] == pytest.approx(54.29)


def test_what_differs_from_the_paper_shows_in_a_row_of_the_benchmark():
    text = to_markdown(tables([run("structalign", tags=PAPER)]))
    assert "33.9M is printed in section 5.2" in text
    assert report.paper_numbers("../config") is None
