"""Tables are made from records only: which runs they contain, averages, published numbers, and notes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.pages.report import curves_html
from ctvr.orchestrator.streams.metric_names import progress_text
from ctvr.orchestrator.tables.build import build, collect, seconds_of, tables
from ctvr.orchestrator.tables.formats import to_markdown
from ctvr.orchestrator.tables.paper_numbers import paper_numbers
from ctvr.orchestrator.tables.selection import measured_on
from ctvr.orchestrator.tables.shown_columns import with_metrics
from ctvr.orchestrator.tables.significance import Ranks
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tables.table_columns import TWIN_NOTE
from ctvr.orchestrator.tables.table_figures import list_drawings, select_curves
from ctvr.orchestrator.tables.write import write, write_slides
from ctvr.orchestrator.tracking.run_record import RunRecord
from tests.refusing import refuses

KEYS = ("r1", "r5", "r10", "medr", "meanr", "bwf")


def run(
    method: str = "lwf", seed: int = 0, r1: float = 24.0, tags: dict | None = None, **settings: object
) -> RunRecord:
    """Return a complete run of two tasks."""
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


def test_a_row_that_learns_once_at_the_end_forgets_nothing_and_has_one_point():
    (row,) = collect([run("upper_bound", seed=seed, **{"method.only_final": "true"}) for seed in (0, 1)])
    assert math.isnan(row.values["bwf"].mean)
    assert row.values["r1"].mean == 24.0
    assert [step for step, *_ in row.curve] == [2]
    assert not row.matrices
    assert not select_curves(Table("s", (), (row,)))
    assert len(select_curves(Table("s", (), (row, *collect([run()]))))) == 2


def test_a_row_that_replays_says_how_its_memory_is_written_and_drawn():
    said = {name: collect([run(name, **of)])[0].marks for name, of in REPLAYING.items()}
    for name in ("er_ring", "der"):
        assert any("only at the end of each task, and repeats stored pairs" in mark for mark in said[name]), name
    for name in ("lwf", "lump", "image_der"):
        assert not any("replay buffer" in mark for mark in said[name]), name


REPLAYING = {
    "er_ring": {"method.buffer_size": "256"},
    "der": {"method.buffer_size": 500},
    "lump": {"method.buffer_size": "0"},
    "image_der": {"method.buffer_size": 256},
    "lwf": {},
}


def test_one_seed_has_no_deviation():
    (row,) = collect([run()])
    assert math.isnan(row.values["r1"].std)
    assert "24.00 |" in to_markdown(tables([run()]))


def test_incomplete_runs_are_left_out_and_counted():
    records = [run(), run(seed=1, tags={"ctvr.complete": "false"})]
    assert len(collect(records)[0].runs) == 1
    assert "1 incomplete run is left out" in to_markdown(tables(records))


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
    rows = collect(
        [run(**{"method.weight": w, "evaluation.query_chunk": c}) for w, c in [("1.0", "512"), ("2.0", "64")]]
    )
    assert [row.label for row in rows] == ["lwf (method.weight=1.0)", "lwf (method.weight=2.0)"]
    presets = [run(tags={"ctvr.presets": p}, **{"method.weight": w}) for p, w in [("", "1.0"), ("released", "2.0")]]
    assert [row.label for row in collect(presets)] == ["lwf (paper)", "lwf (released)"]
    chosen = [
        run(tags={"ctvr.choice": c}, **{"method.weight": w}) for c, w in [("recommended", "1"), ("searched", "2")]
    ]
    assert {row.label for row in collect(chosen)} == {"lwf (recommended)", "lwf (searched)"}
    many = collect([run(**{"method.weight": w}) for w in ("0.38128931940501426", "2.0")])
    assert {row.label for row in many} == {"lwf (method.weight=0.381)", "lwf (method.weight=2.0)"}
    trials = [
        run(tags={"ctvr.number": n}, **{"method.weight": w})
        for n, w in (("0002", "0.38128931940501426"), ("0010", "2"))
    ]
    (table,) = tables(trials)
    assert {row.label for row in table.rows} == {"lwf (trial 2)", "lwf (trial 10)"}
    assert {"lwf (trial 2): weight=0.381", "lwf (trial 10): weight=2"} <= set(table.notes)


def test_the_upper_bound_is_last_and_zero_shot_first():
    rows = collect([run(m) for m in ("upper_bound", "a_new_method", "framefusion_moe", "lwf", "zero_shot")])
    assert [r.method for r in rows] == ["zero_shot", "lwf", "a_new_method", "framefusion_moe", "upper_bound"]


def test_streams_get_their_own_tables():
    made = tables([run(), run(tags={"ctvr.stream": "shapes-5"})])
    assert [table.stream for table in made] == ["msrvtt-10", "shapes-5"]


def test_without_a_complete_run_there_is_no_table():
    with refuses("1", where="table"):
        build(None, [run(tags={"ctvr.complete": "false"})])  # type: ignore[arg-type]


# --- published numbers and notes


def test_settings_that_no_paper_publishes_are_named_below_the_table():
    records = [run(**{"method.weight": "0.5", "base.lr": "1e-06"}), run("zero_shot", r1=20.0)]
    text = to_markdown(tables(records))
    assert "chosen by us, because no paper publishes these values: method.weight=0.5, base.lr=1e-06" in text
    assert text.count("chosen by us") == 1


def test_the_papers_number_and_deviation_follow_ours():
    (table,) = tables([run("framefusion_moe", tags=PAPER)])
    assert table.rows[0].paper["r1"].mean == 25.87
    text = to_markdown(table)
    assert "*25.87±0.33*" in text
    assert "arXiv:2503.10111, Table 1" in text


def test_papers_are_not_compared_on_other_streams_or_validation_videos():
    assert not collect([run("framefusion_moe")])[0].paper
    assert not collect([run("framefusion_moe", tags=PAPER, **{"evaluation.split": "val"})])[0].paper
    assert not collect([run("a_new_method", tags=PAPER)])[0].paper


@pytest.mark.parametrize(
    ("tags", "settings", "text"),
    [
        ({"ctvr.note": "first | second"}, {}, "</sup> second"),
        ({"ctvr.searched": "lwf:24", "ctvr.selection": "R@1 on val videos"}, {}, "24 trials by R@1 on val videos"),
        ({}, {"evaluation.select": "best"}, "best-on-test"),
        ({"ctvr.select_split": "test"}, {"evaluation.select": "best"}, "best-on-test"),
        ({"ctvr.select_split": "val"}, {"evaluation.select": "best"}, "scores best on the validation videos"),
        ({"ctvr.select_split": "test"}, {"evaluation.select": "best", "evaluation.split": "val"}, "best-on-test"),
        ({}, {"evaluation.select": "best", "evaluation.split": "val"}, "scores best on the validation videos"),
        ({}, {"evaluation.split": "val"}, "measured on validation videos"),
        ({"ctvr.mark": "no validation split: x"}, {}, "no validation split"),
        ({"ctvr.recommended_epochs": "8"}, {"optim.epochs": "0"}, "epochs per task: 0 (recommended: 8)"),
        ({"ctvr.recommended_epochs": "0"}, {"optim.epochs": "0"}, "untrained model (preset untrained)"),
        ({"ctvr.transductive": "true"}, {}, "transductive"),
        ({"ctvr.transductive": "true"}, {}, "depends on the other queries of the test set"),
        ({"ctvr.note": "T is 2, the paper has 1"}, {}, "T is 2"),
        ({"ctvr.searched": "lwf:24"}, {}, "best of 24 trials"),
        (PAPER, {"backbone.name": "tiny-clip"}, "backbone tiny-clip"),
    ],
)
def test_a_table_has_the_caveats_of_its_runs(tags, settings, text):
    assert text not in to_markdown(tables([run()]))
    assert text in to_markdown(tables([run(tags=tags, **settings)]))


def test_the_search_of_a_method_is_not_noted_at_its_baselines():
    text = to_markdown(tables([run("clip4clip", tags={"ctvr.searched": "lwf:24"})]))
    assert "best of" not in text
    assert "| 0 |" in text  # trials of its own


def test_a_row_carries_its_trials_and_the_time_of_search_and_reruns():
    tags = {"ctvr.searched": "lwf:8", "ctvr.search_seconds": "100.5"}
    records = [run(seed=seed, tags=tags) for seed in (1, 2)]
    for record in records:
        record.metrics["cost/seconds_task"] = [(1, 10.0), (2, 5.0)]
    assert seconds_of(records[0]) == 15.0
    records[1].tags["ctvr.reused_tasks"] = "1"  # which another run has trained
    assert seconds_of(records[1]) == 5.0
    (row,) = collect(records)
    assert (row.trials, row.seconds) == (8, 120.5)
    (alone,) = collect([run()])
    assert alone.trials is None


def test_a_table_that_was_preset_has_its_rows_in_its_order_and_its_title():
    names = ("xpool", "lwf", "zero_shot")
    tags = [{"ctvr.place": f"{place:03d}", "ctvr.table": "Table 1 of X"} for place in range(3)]
    (table,) = tables([run(name, tags=tag) for name, tag in zip(names, tags)])
    assert [row.method for row in table.rows] == list(names)
    assert table.heading == "msrvtt-10: Table 1 of X"


def test_named_configuration_is_a_row_with_its_paper():
    records = [run("vr_lwf", tags=PAPER), run("vr_lwf", 1, tags={**PAPER, "ctvr.method": "tvr_plus_cl"})]
    rows = collect(records)
    assert [row.label for row in rows] == ["vr_lwf", "tvr_plus_cl"]
    assert [row.paper["r1"].mean for row in rows] == [24.49, 22.47]


def test_table_takes_the_newest_version_and_names_the_others():
    records = [run(tags={"ctvr.stream_digest": "a"}), run("zscl", 1, tags={"ctvr.stream_digest": "b"})]
    (table,) = tables(records)
    assert [row.method for row in table.rows] == ["zscl"]
    assert "Left out: 1 run on earlier versions of the stream (tag ctvr.stream_digest)." in table.notes


def test_runs_on_replaced_frames_share_neither_a_row_nor_a_table():
    old, new = ({"ctvr.stream_digest": "a", "ctvr.frames": frames} for frames in ("old", "new"))
    note = (
        "Left out: {} whose frames or features differ from those of the newest run with equal settings "
        "(tag ctvr.frames)."
    )
    for former in (run(tags=old), run("zscl", tags=old)):  # a seed of the row, and another row
        (table,) = tables([former, run(seed=1, tags=new)])
        assert [(row.method, len(row.runs)) for row in table.rows] == [("lwf", 1)]
        assert note.format("1 run") in table.notes
    (table,) = tables([run(tags=old), run(seed=1, tags=old), run("zscl", tags={"ctvr.stream_digest": "a"})])
    assert [(row.method, len(row.runs)) for row in table.rows] == [("lwf", 2), ("zscl", 1)]
    assert not any("other frames" in note for note in table.notes)


def test_captions_and_videos_are_counted_where_there_are_some():
    ranked, image = run(), run("zscl", 1)
    ranks = {ranked.run_id: Ranks({"a#0": 1, "a#1": 2, "b#0": 3}, {}), image.run_id: Ranks({}, {})}
    assert measured_on([ranked, image], ranks) == "Measured on the test split: 3 captions of 2 videos."
    assert measured_on([image], ranks) == "Measured on the test split."


def test_a_table_holds_one_split_and_says_which():
    records = [run(r1=24.0), run("zscl", r1=40.0, **{"evaluation.split": "val"})]
    (table,) = tables(records)
    assert [row.method for row in table.rows] == ["lwf"]
    assert "Measured on the test split." in table.notes
    assert "Left out: 1 run on validation videos (use --split val)." in table.notes
    (table,) = tables(records, split="val")
    assert [row.method for row in table.rows] == ["zscl"]
    assert "Measured on the validation split." in table.notes
    (table,) = tables(records[1:])  # there are no other runs
    assert [row.method for row in table.rows] == ["zscl"]
    with refuses("msrvtt-10", where="--split val"):
        tables(records[:1], split="val")


def test_a_streams_table_has_no_run_by_which_a_row_was_chosen():
    """On a stream without validation videos a trial has the split of the reruns, and its seed chose the settings."""
    trial, confirmed = ({tag: "x"} for tag in ("ctvr.trial", "ctvr.confirms"))
    records = [run(seed=1, r1=90.0, tags=trial), run(seed=2, r1=80.0, tags=confirmed), run(seed=3), run(seed=4)]
    (table,) = tables(records, of_stream=True)
    assert [row.seeds for row in table.rows] == [("3", "4")]
    assert "Left out: 2 runs by which searches chose settings (use --sweep NAME)." in table.notes
    assert len(tables(records[:2], of_stream=True)[0].rows[0].seeds) == 2  # a stream with trials alone shows them
    (table,) = tables(records)
    assert table.rows[0].seeds == ("1", "2", "3", "4")


def test_untrained_row_stands_once():
    """Its newest run represents all of them."""

    def untrained(seed: int, epochs: str) -> RunRecord:
        made = run("zero_shot", seed, 10.0 + seed, **{"optim.epochs": epochs})
        return RunRecord(**{**vars(made), "metrics": {**made.metrics, "cost/trained_parameters": [(2, 0.0)]}})

    rows = collect([untrained(1, "8"), untrained(2, "20"), run(seed=1), run(seed=2)])
    assert [(row.method, row.seeds, row.values["r1"].mean) for row in rows] == [
        ("zero_shot", ("2",), 12.0),
        ("lwf", ("1", "2"), pytest.approx(24.0, abs=9)),
    ]


# --- the comparison with the best row


class Files:
    """Replacement for the tracker: serves ranks.json of some runs."""

    def __init__(self, folder: Path, ranks: dict[str, list[float]], tasks: list[int] | None = None) -> None:
        self.folder, self.ranks, self.tasks = folder, ranks, tasks

    def download(self, run_id: str, artifact: str) -> Path:
        if run_id not in self.ranks:
            raise FileNotFoundError(artifact)
        names = [f"video{n}#0" for n in range(len(self.ranks[run_id]))]
        path = self.folder / f"{run_id}.json"
        tasks = {} if self.tasks is None else {"tasks": self.tasks}
        path.write_text(json.dumps({"query ids": names, "ranks": self.ranks[run_id], **tasks}))
        return path


def test_a_difference_from_the_best_has_its_interval_its_p_and_a_star(tmp_path):
    methods = [("lwf", 30.0), ("zscl", 29.6), ("xpool", 10.0), ("vr_lwf", 20.0), ("upper_bound", 31.0), ("dsl", 32.0)]
    transductive = {"ctvr.transductive": "true"}
    records = [run(name, seed, r1, transductive if name == "dsl" else None) for name, r1 in methods for seed in (0, 1)]
    hits = {"lwf": 150, "zscl": 148, "xpool": 50, "upper_bound": 160, "dsl": 170}
    ranks = {
        r.run_id: [1.0] * (n := hits[m]) + [7.0] * (500 - n) for r in records if (m := r.settings["method"]) in hits
    }
    (table,) = build(Files(tmp_path, ranks), records)  # type: ignore[arg-type]
    rows = {row.method: row for row in table.rows}
    assert rows["lwf"].is_reference
    assert rows["xpool"].vs_best.value == pytest.approx(-20.0)
    assert rows["xpool"].vs_best.low < -20.0 < rows["xpool"].vs_best.high < 0
    assert rows["xpool"].vs_best.p < 0.01 < 0.05 < rows["zscl"].vs_best.p
    text = to_markdown(table)
    assert "p&lt;0.001\\*" in next(line for line in text.splitlines() if line.startswith("| xpool"))
    assert "\\*" not in next(line for line in text.splitlines() if line.startswith("| zscl"))
    assert text.count("| not compared |") == 3
    for reason in (
        "ranks of its queries are not stored",
        "access to all tasks at once",
        "depends on other test queries",
    ):
        assert reason in text
    assert "A missing star does not show that two rows are equal" in text
    assert table.best()["r1"] == 30.0  # of the inductive rows below the upper bound
    (alone,) = build(Files(tmp_path, ranks), records[::2])  # type: ignore[arg-type]
    assert "because no row has several seeds" in to_markdown(alone)
    assert not any(row.vs_best for row in alone.rows)


def test_r1_with_and_without_twins_is_shown_where_it_was_measured():
    record = run("lwf")
    record.metrics.update({"stream/t2v/r1_twins": [(2, 10.0)], "stream/t2v/r1_no_twins": [(2, 20.0)]})
    (table,) = tables([record])
    assert [column.key for column in table.columns][-2:] == ["r1_no_twins", "r1_twins"]
    assert TWIN_NOTE in table.notes
    (plain,) = tables([run("lwf")])
    assert "r1_twins" not in [column.key for column in plain.columns]
    assert TWIN_NOTE not in plain.notes


# --- CVLM


def cvlm(method: str = "bmu_moco", seed: int = 0) -> RunRecord:
    """Return a run of two tasks whose records agree with the matrix [[60], [50, 40]]."""
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


def test_cvlm_rows_are_compared_by_the_mean_over_tasks(tmp_path):
    """Method b is better over all queries, and worse in the mean over a large and a small task."""
    tasks = [0] * 400 + [1] * 40
    a = [1.0] * 200 + [9.0] * 200 + [1.0] * 40
    b = [1.0] * 260 + [9.0] * 140 + [9.0] * 40
    records = [cvlm(method, seed) for method in ("bmu_moco", "base_moco") for seed in (0, 1)]
    ranks = {record.run_id: a for record in records[:2]}
    for record in records[2:]:
        record.metrics["stream/t2v/r1_mean"] = [(2, 32.5)]
        ranks[record.run_id] = b
    (table,) = build(Files(tmp_path, ranks, tasks), records)  # type: ignore[arg-type]
    assert [row.vs_best.p < 0.01 for row in table.rows if row.vs_best] == [True]
    (table,) = build(Files(tmp_path, ranks), records)  # type: ignore[arg-type]
    assert not any(row.vs_best for row in table.rows)  # recorded before tasks were: nothing can be concluded


# --- images


def of_images(method: str = "image_finetune") -> RunRecord:
    """Return the accuracy of two tasks; there are no ranks, and after the first task no forgetting."""
    metrics = {
        "stream/knn/accuracy": [(1, 60.0), (2, 55.0)],
        "stream/knn/forgetting": [(2, 5.0)],
        "task_01/knn/accuracy": [(1, 60.0), (2, 55.0)],
        "task_02/knn/accuracy": [(2, 55.0)],
    }
    tags = {"ctvr.complete": "true", "ctvr.stream": "shapes-images", "ctvr.protocol": "ucl"}
    return RunRecord(method, method, {"method": method, "seed": 0}, metrics, tags, "FINISHED", "")


def test_a_table_of_images_counts_accuracy_and_compares_no_ranks():
    records = [of_images(), of_images("image_si")]
    (table,) = tables(records, {record.run_id: Ranks({"video#0": 1.0}, {}) for record in records})
    assert [column.key for column in table.columns][:2] == ["accuracy", "forgetting"]
    assert table.rows[0].values["forgetting"].mean == 5.0
    assert not any(row.vs_best or row.is_reference for row in table.rows)
    assert not any("rank" in mark for row in table.rows for mark in row.marks)
    assert "accuracy after each task, over all videos so far, in percent" in curves_html(table)
    said = " ".join(f"{title} {panel.y}" for _, title, panels in list_drawings(table) for panel in panels)
    assert "accuracy after each task" in said
    assert "R@1" not in said
    assert progress_text({"stream/knn/accuracy": 60.0}) == "accuracy 60.00"
    assert "forgetting 0.00" in progress_text({"stream/t2v/r1": 5.0, "stream/t2v/bwf": -8.9e-16})


# --- files


@pytest.mark.slow
def test_tables_and_figures_are_written_whole(tmp_path):
    records = [run("lwf", 0, 24.0), run("lwf", 1, 25.0), run("a/b ../c", tags=PAPER)]
    for record in records[:2]:  # figures take long: matrices of one row alone
        del record.metrics["task_01/t2v/r1"], record.metrics["task_01/t2v/r1_own"]
    paths = write(tables(records), tmp_path / "tables")
    names = [path.name for path in paths]
    assert names[:4] == ["msrvtt-10.md", "msrvtt-10.tex", "msrvtt-10.csv", "msrvtt-10_r1.png"]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(names)
    assert all(path.parent == tmp_path / "tables" for path in paths)
    assert {path.suffix for path in paths[3:]} == {".png", ".pdf"}
    for path in paths[3:]:
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"%PDF")
    again = [path.read_bytes() for path in write(tables(records), tmp_path / "again")]
    assert again == [path.read_bytes() for path in paths]


@pytest.mark.slow
def test_figures_for_slides_are_equal_svg_and_pdf_files(tmp_path):
    record = run("lwf")
    del record.metrics["task_01/t2v/r1"], record.metrics["task_01/t2v/r1_own"]
    made = tables([record])
    paths = write_slides(made, tmp_path / "a")
    assert [path.name for path in paths][:2] == ["msrvtt-10_r1.svg", "msrvtt-10_r1.pdf"]
    assert paths[0].read_bytes().startswith(b"<?xml")
    again = write_slides(made, tmp_path / "b")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_slides_are_refused_where_a_file_is(tmp_path):
    (tmp_path / "file").write_text("")
    with refuses(f"--figures {tmp_path / 'file'}", remedy=True):
        write_slides(tables([run()]), tmp_path / "file")


def test_the_matrices_are_means_over_seeds():
    other = run(seed=1)
    other.metrics["task_01/t2v/r1_own"] = [(1, 50.0), (2, 48.0)]
    (row,) = collect([run(), other])
    assert row.matrices == {"own gallery": [[55.0], [53.0, 45.0]], "all galleries so far": [[60.0], [50.0, 40.0]]}


# --- the published numbers


def test_a_row_of_the_benchmark_lists_deviations_from_the_paper():
    text = to_markdown(tables([run("structalign", tags=PAPER)]))
    assert "33.9M is printed in section 5.2" in text
    assert paper_numbers("../config") is None


def test_oracle_rows_are_neither_bold_nor_compared():
    told = run("zscl", **{"evaluation.oracle_task": "True"})
    told.metrics.update({f"stream/oracle/{name}": [(2, 40.0)] for name in ("r1", "r1_block", "right")})
    (table,) = tables([run("lwf"), told])
    titles = [column.title for column in table.columns]
    assert {"Oracle: R@1, own prompt", "Oracle: R@1, own block", "Best video of right task (%)"} <= set(titles)
    assert not any(key.startswith("oracle") for key in table.best())
    assert any(note.startswith("Oracle: the task of each caption is given") for note in table.notes)
    (plain,) = tables([run("lwf"), run("zscl")])
    assert not any(column.key.startswith("oracle") for column in plain.columns)


def test_the_galleries_are_the_distinct_videos_of_each_task():
    record = run()
    of = dict.fromkeys(("a#0", "a#1", "b#0", "c#0"), 1.0)
    ranks = Ranks(of, {"a#0": 0, "a#1": 0, "b#0": 1, "c#0": 1})
    assert tables([record], {record.run_id: ranks})[0].galleries == (1, 2)
    assert tables([record])[0].galleries == ()


def test_any_recorded_metric_is_a_column_with_mean_and_deviation_and_no_bold_cell():
    def with_metric(values: dict[str, float], **more: object) -> RunRecord:
        made = run(**more)
        return RunRecord(**{**vars(made), "metrics": {**made.metrics, **{k: [(2, v)] for k, v in values.items()}}})

    name = "stream/t2v/ndcg10"
    runs = [with_metric({name: value}, seed=seed) for seed, value in enumerate((0.51, 0.52, 0.56))]
    (table,) = with_metrics(tables([*runs, run("clip4clip")]), [name, "stream/t2v/bwf"])
    assert [(column.key, column.better) for column in table.columns[-2:]] == [(name, ""), ("stream/t2v/bwf", "")]
    first, second = sorted(table.rows, key=lambda row: row.label, reverse=True)
    assert first.values[name].mean == pytest.approx(0.53)
    assert first.values[name].std == pytest.approx(np.std([0.51, 0.52, 0.56], ddof=1))
    assert name not in second.values
    assert first.values["stream/t2v/bwf"] == first.values["bwf"]
    assert table.columns[-2].key not in table.best()
    lines = to_markdown(table).splitlines()
    assert sum("t2v/ndcg10" in line for line in lines) == 1
    assert any("0.53±0.03 |" in line for line in lines)
    assert any("n/a |" in line for line in lines if "clip4clip" in line)


@pytest.mark.parametrize(
    ("name", "near"), [("bwf", "stream/t2v/bwf"), ("stream/t2v/r01", "stream/t2v/r1"), ("x", "cost")]
)
def test_a_column_that_no_run_recorded_is_refused_with_similar_names(name, near):
    with refuses(name, near, where="--columns", remedy=True):
        with_metrics(tables([run()]), [name])
