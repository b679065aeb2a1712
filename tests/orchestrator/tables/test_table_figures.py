"""Figures of a table show the values of its rows; without such values a figure is omitted."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.sweeps.table import made_tables
from ctvr.orchestrator.tables import write as write_file
from ctvr.orchestrator.tables.build import tables
from ctvr.orchestrator.tables.curves import changes
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tables.table_figures import FIGURES, expert_shares, list_drawings, mean_cost, pareto
from ctvr.orchestrator.tables.write import write
from tests.orchestrator.tables.test_build import PAPER, cvlm, run

DOCUMENT = Path(__file__).parents[3] / "docs" / "figures.md"


def draw_only(monkeypatch, word: str) -> None:
    """Let `write` draw only the figures of a table whose names contain the word."""
    figures = write_file._figures
    monkeypatch.setattr(write_file, "_figures", lambda *table: [each for each in figures(*table) if word in each[0]])


def drawn(*runs):
    """Return name -> panels of the one table of these runs."""
    (table,) = tables(list(runs))
    return {name: panels for name, _, panels in list_drawings(table)}


def test_each_figure_has_its_sentence_and_an_empty_table_has_none():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in (*FIGURES, "vary_<setting>") if f"_{name}`" not in text] == []
    assert list_drawings(Table("empty", (), ())) == []


def test_forgetting_is_learned_score_minus_final_score():
    panels = drawn(run())["forgetting"]
    assert [point[:2] for point in panels[0].lines[0].points] == [(1, 60.0), (2, 58.0)]
    assert [point[:2] for point in panels[-1].lines[0].points] == [(2, 2.0)]
    low, high = panels[-1].between
    assert low < -1 < 2 < high


def test_the_figure_for_cvlm_shows_learned_and_final_r1():
    learned, final = drawn(cvlm())["final"]
    assert learned.between == final.between == (38.0, 62.0)
    assert [point[:2] for point in learned.lines[0].points] == [(1, 60.0), (2, 40.0)]
    assert [point[:2] for point in final.lines[0].points] == [(1, 50.0), (2, 40.0)]
    assert "final" not in drawn(run())


def test_plasticity_is_over_zero_shot_and_needs_its_row():
    zero = run("zero_shot")
    zero.metrics["task_02/t2v/r1_own"] = [(2, 40.0)]
    (panel,) = drawn(run(), zero)["plasticity"]
    assert {line.label: [point[:2] for point in line.points] for line in panel.lines} == {"lwf": [(1, 0.0), (2, 5.0)]}
    assert panel.bars
    assert "plasticity" not in drawn(run())


def test_changes_are_every_task_after_every_task_less_zero_shot(tmp_path, monkeypatch):
    draw_only(monkeypatch, "changes")
    zero = run("zero_shot")
    zero.metrics["task_02/t2v/r1_own"] = [(2, 40.0)]
    zero.metrics["task_01/t2v/r1_own"] = [(1, 55.0), (2, 55.0)]
    (table,) = tables([run(), zero])
    assert changes(table) == {"lwf": [[5.0], [3.0, 5.0]]}
    assert {f"msrvtt-10_changes{form}" for form in (".png", ".pdf")} <= {path.name for path in write(table, tmp_path)}
    assert changes(tables([run()])[0]) == {}


def test_current_r1_averages_scores_right_after_learning():
    tags = {"ctvr.table_name": "bmu-fig4", "ctvr.varies": "method.m_hat"}
    records = []
    for m_hat, first in (("0.9", 60.0), ("0.99", 64.0)):
        record = cvlm()
        record.settings["method.m_hat"] = m_hat
        record.tags.update(tags)
        record.metrics["task_01/t2v/r1_own"] = [(1, first), (2, 50.0)]
        records.append(record)
    (table,) = tables(records)
    assert [row.values["current"].mean for row in table.rows] == [50.0, 52.0]
    assert "R@1 (current)" in {column.title for column in table.columns}
    panels = next(panels for name, _, panels in list_drawings(table) if name == "vary_m_hat")
    assert "R@1 (current) (%)" in {panel.y for panel in panels}


def test_average_incremental_r1_is_the_mean_of_the_means_after_each_task():
    """Section 7 of the shared sheet on an index's age: (80 + (20 + 70)/2 + (30 + 30 + 60)/3) / 3 = 55."""
    record = run()
    record.tags["ctvr.table_name"] = "worlds"
    for name in [name for name in record.metrics if "/t2v/r1" in name and name.startswith("task_")]:
        del record.metrics[name]
    record.metrics["task_01/t2v/r1"] = [(1, 80.0), (2, 20.0), (3, 30.0)]
    record.metrics["task_02/t2v/r1"] = [(2, 70.0), (3, 30.0)]
    record.metrics["task_03/t2v/r1"] = [(3, 60.0)]
    (table,) = tables([record])
    assert table.rows[0].values["incremental"].mean == pytest.approx(55)
    del record.metrics["task_02/t2v/r1"][1]
    (table,) = tables([record])
    assert math.isnan(table.rows[0].values["incremental"].mean)


def test_cost_figure_shows_differing_costs_and_the_front():
    cheap, dear = run(r1=20.0), run("zscl", r1=30.0)
    cheap.metrics["cost/trained_parameters"] = [(2, 1e6)]
    for record in (cheap, dear):
        record.metrics["cost/video_gmacs"] = [(2, 53.0)]
    (panel,) = drawn(cheap, dear)["cost"]
    assert panel.x.startswith("trained parameters")
    assert {line.label: line.points[0][:2] for line in panel.lines} == {"lwf": (1.0, 20.0), "zscl": (46.8, 30.0)}
    assert panel.front == [(1.0, 20.0), (46.8, 30.0)]
    assert pareto([(2, 5), (1, 4), (3, 5), (1, 3), (4, 9)]) == [(1, 4), (2, 5), (4, 9)]


def streams(monkeypatch) -> ExecutionConfig:
    """Return records of two methods on each of two streams, and of a third method on one of them."""
    records = []
    for stream, shift in (("msrvtt-10", 0.0), ("actnet-10", 4.0)):
        for method, r1, weights in (("lwf", 20.0, 100e6), ("lora", 24.0 - 3 * shift, 1e6 + shift * 1e6)):
            record = run(method, r1=r1 + shift, tags={"ctvr.stream": stream}, stream=stream)
            record.metrics["cost/trained_parameters"] = [(2, weights)]
            records.append(record)
    records.append(run("zscl", r1=90.0))

    def find_runs(stream: str, sweep: None) -> list:
        return [record for record in records if record.tags["ctvr.stream"] == stream]

    tracker = SimpleNamespace(find_runs=find_runs, download=lambda run_id, name: Path("none"))
    monkeypatch.setattr(ExecutionConfig, "existing_tracker", lambda self: tracker)
    return ExecutionConfig()


def test_the_mean_over_streams_is_of_the_rows_that_each_stream_has(monkeypatch, tmp_path):
    draw_only(monkeypatch, "mean")
    made = made_tables(streams(monkeypatch), stream="msrvtt-10,actnet-10")
    assert [table.stream for table in made] == ["msrvtt-10", "actnet-10"]
    (panel,) = mean_cost(made)
    assert {line.label: line.points[0][:2] for line in panel.lines} == {"lwf": (100.0, 22.0), "lora": (3.0, 20.0)}
    assert panel.front == [(3.0, 20.0), (100.0, 22.0)]
    assert panel.y == "R@1 (%), mean of 2 streams"
    assert {"mean_cost.png", "mean_cost.pdf"} <= {path.name for path in write(made, tmp_path / "several")}
    assert not [path.name for path in write(made[:1], tmp_path / "one") if path.name.startswith("mean")]


def test_a_table_may_show_what_rows_cost_and_what_forgetting_that_buys():
    """The package's own table, which no paper prints, shows its columns and two fronts, one of which falls."""
    tags = {"ctvr.table_name": "efficient-continual"}
    records = []
    for method, gmacs, r1, bwf in (("lwf", 53.0, 30.0, 2.0), ("zscl", 40.0, 28.0, 1.0), ("der", 60.0, 29.0, 1.5)):
        record = run(method, r1=r1, tags=tags)
        record.metrics.update(
            {
                "cost/video_gmacs": [(2, gmacs)],
                "cost/stored_floats_per_video": [(2, 512.0)],
                "cost/peak_memory_mb": [(2, 100.0)],
                "cost/seconds_task": [(1, 4.0), (2, 5.0)],
                "stream/t2v/bwf": [(2, bwf)],
            }
        )
        records.append(record)
    (table,) = tables(records)
    assert [column.key for column in table.columns[-4:]] == ["gmacs", "run_seconds", "memory", "stored"]
    assert [table.rows[0].values[key].mean for key in ("run_seconds", "stored")] == [9.0, 2.048]
    r1, bwf = drawn(*records)["pareto"]
    assert (r1.front, bwf.front) == ([(40.0, 28.0), (53.0, 30.0)], [(40.0, 1.0)])
    assert "pareto" not in drawn(*(run(method) for method in ("lwf", "zscl")))


def test_r_sum_is_drawn_over_multiply_adds_where_a_table_shows_it():
    records = []
    for method, gmacs, total in (("lora", 53.0, 190.0), ("tempme", 35.0, 200.0), ("tome", 38.0, 180.0)):
        record = run(method, r1=20.0, tags={"ctvr.table_name": "tempme-table1"})
        record.metrics.update({"cost/video_gmacs": [(2, gmacs)], "stream/t2v/rsum": [(2, total)]})
        records.append(record)
    (panel,) = drawn(*records)["sums"]
    assert {line.label: line.points[0][:2] for line in panel.lines}["tome"] == (38.0, 180.0)
    assert panel.front == [(35.0, 200.0)]
    for record in records:
        record.tags["ctvr.table_name"] = "ctvr-table1"
    assert "sums" not in drawn(*records)


def test_epoch_and_task_metrics_of_one_name_are_distinguished():
    first, second = run("structalign"), run("structalign", seed=1)
    for record, value in ((first, 0.2), (second, 0.4)):
        record.metrics["train/loss/nce"] = [(8 * epoch, 1.0) for epoch in range(1, 5)]
        record.metrics["train/micd_text"] = [(1, 9.0), (2, 9.0)] + [(8 * epoch, value) for epoch in range(1, 5)]
    (panel,) = drawn(first, second)["geometry"]
    ((*point, std),) = panel.lines[0].points[:1]
    assert [x for x, _, _ in panel.lines[0].points] == [1, 2, 3, 4]
    assert point == pytest.approx([1, 0.3])
    assert std == pytest.approx(0.1414, abs=1e-4)
    assert panel.borders == [2.5]
    assert "geometry" not in drawn(run())


def test_losses_of_learned_and_other_pairs_are_sums_of_their_terms():
    """A term that only a later task has counts from that task on, and does not shift the epochs."""
    records = [run("camoe"), run("camoe", seed=1), run("clip4clip")]
    for seed, record in enumerate(records):  # two seeds of one row, and another row
        record.metrics["train/loss/nce"] = [(8 * epoch, 2.0 - 0.1 * epoch + seed) for epoch in range(1, 5)]
        if record is not records[-1]:
            record.metrics["train/loss/action"] = [(8 * epoch, 1.0) for epoch in (3, 4)]
            record.metrics["test/loss/nce"] = [(8 * epoch, 3.0) for epoch in range(1, 5)]
    (panel,) = drawn(*records)["losses"]
    assert [line.label for line in panel.lines] == ["train pairs", "test pairs"]
    assert [[x for x, _, _ in line.points] for line in panel.lines] == [[1, 2, 3, 4]] * 2
    assert [mean for _, mean, _ in panel.lines[0].points] == pytest.approx([2.4, 2.3, 3.2, 3.1])
    assert [mean for _, mean, _ in panel.lines[1].points] == [3.0] * 4
    assert (panel.title, panel.borders) == ("camoe", [2.5])
    assert "losses" not in drawn(records[-1])


def test_gates_are_drawn_by_task_at_its_last_epoch():
    gated = run("camoe")
    gated.metrics["train/loss/nce"] = [(8 * epoch, 1.0) for epoch in range(1, 5)]
    gated.metrics["train/gate/entity"] = [(8 * epoch, 0.1 * epoch) for epoch in range(1, 5)]
    (panel,) = drawn(gated, run())["experts"]
    assert [(line.label, [point[:2] for point in line.points]) for line in panel.lines] == [
        ("gate: entity", [(1, 0.2), (2, 0.4)])
    ]
    assert "experts" not in drawn(run())


def test_experts_have_shares_of_a_task_whatever_was_summed(tmp_path, monkeypatch):
    """Shares are those of the last epoch; an expert that is added later has none before."""
    draw_only(monkeypatch, "experts")
    record = run("framefusion_moe")
    record.metrics["train/loss/nce"] = [(8 * epoch, 1.0) for epoch in range(1, 5)]
    record.metrics["train/expert/01"] = [(8, 9.0), (16, 6.0), (24, 9.0), (32, 1.5)]
    record.metrics["train/expert/02"] = [(24, 9.0), (32, 4.5)]
    (table,) = tables([record])
    np.testing.assert_allclose(expert_shares(table.rows[0]), [[100, 25], [0, 75]])
    assert "msrvtt-10_framefusion_moe_experts.png" in {path.name for path in write(table, tmp_path)}
    assert expert_shares(tables([run()])[0].rows[0]).shape[0] == 0


def test_a_line_joins_the_rows_that_differ_in_one_setting_alone():
    varies = {"ctvr.varies": "method.beta,method.num_experts"}
    values = [("0.6", "10", 30.0), ("0.2", "10", 28.0), ("0.0", "10", 27.0), ("0.6", "5", 29.0), ("0.6", "1", 26.0)]
    records = [
        run("framefusion_moe", seed, r1 + seed, {**varies, "ctvr.row": "framefusion_moe" if r1 == 30 else f"x={r1}"},
            **{"method.beta": beta, "method.num_experts": experts, "method.top_k": str(min(2, int(experts)))})
        for beta, experts, r1 in values for seed in (0, 2)
    ]  # fmt: skip
    panels = drawn(*records, run("clip4clip", r1=20.0, tags=varies))
    r1, bwf = panels["vary_beta"]
    assert [(x, mean) for x, mean, _ in r1.lines[0].points] == [(0.0, 28.0), (0.2, 29.0), (0.6, 31.0)]
    assert [std for _, _, std in r1.lines[0].points] == pytest.approx([2**0.5] * 3)
    assert [level.points[0][1] for level in r1.levels] == [20.0]
    assert r1.borders == [0.6]
    assert bwf.y == "BWF (points)"
    assert [x for x, _, _ in panels["vary_num_experts"][0].lines[0].points] == [1.0, 5.0, 10.0]
    assert not any(name.startswith("vary") for name in drawn(run(), run(**{"method.beta": "2"})))
    frames = {count: {"data.num_frames": count, "method.num_frames": count} for count in ("6", "12")}  # one follows
    told = drawn(*(run(r1=30.0, tags={"ctvr.varies": "data.num_frames"}, **frames[count]) for count in frames))
    assert [x for x, _, _ in told["vary_num_frames"][0].lines[0].points] == [6.0, 12.0]


def test_task_orders_are_one_row_with_their_spread_in_figure_and_note():
    content = {"ctvr.stream_content": "c"}
    records = [
        run("lwf", seed, r1 + seed, {**content, **PAPER, "ctvr.stream_digest": stream}, stream=stream)
        for stream, r1 in (("s", 20.0), ("s@1", 24.0), ("s@2", 22.0))
        for seed in (0, 2)
    ]
    records += [run("zscl", tags={**content, "ctvr.stream_digest": "s"}, stream="s")]
    (table,) = tables(records)
    row = next(row for row in table.rows if row.method == "lwf")
    assert sorted(row.seeds) == ["0@0", "0@1", "0@2", "2@0", "2@1", "2@2"]
    assert row.values["r1"].mean == 23.0
    assert row.paper == {}
    assert (
        "mean over 3 task orders: R@1 is 21.00 to 25.00, with a standard deviation of 2.00 between orders"
        in row.marks[-1]
    )
    assert not any("different" in note for note in (*table.notes, *row.marks))
    r1, bwf = {name: panels for name, _, panels in list_drawings(table)}["orders"]
    assert [(line.label, [point[:2] for point in line.points]) for line in r1.lines] == [
        ("lwf", [(0, 21.0), (1, 25.0), (2, 23.0)])
    ]
    assert r1.lines[0].points[0][2] == pytest.approx(2**0.5)
    assert bwf.ticks == [(0.0, "own"), (1.0, "1"), (2.0, "2")]
