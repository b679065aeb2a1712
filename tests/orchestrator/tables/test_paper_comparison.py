"""A row gets a paper's numbers if and only if it ran the paper's settings."""

import pytest

from ctvr.orchestrator.sweeps.table import papers_of, printed_settings
from ctvr.orchestrator.tables.build import tables
from ctvr.orchestrator.tables.formats import to_csv, to_markdown
from ctvr.orchestrator.tables.paper_comparison import ROW, TABLE_NAME, PaperRun, more_columns
from ctvr.orchestrator.tables.paper_numbers import PublishedRow, published_rows, published_tables
from ctvr.orchestrator.tables.table import number
from ctvr.orchestrator.tracking.run_record import RunRecord, as_text

PRINTED = [
    ("ctvr-table2", "framefusion_moe:no-ffa", "actnet-10", {"r1": 16.84, "bwf": -0.28}),
    ("structalign-table3", "structalign:framework", "msrvtt-10", {"r1": 22.71, "meanr": 100.97}),
    ("bmu-table2", "bmu_moco:table2-row3", "cvlm", {"r1": 32.35, "fr": 36.95, "task_05/r1": 39.96}),
    ("camoe-table5", "camoe:akwe", "msrvtt", {"r1": 43.1, "v2t/r1": 43.1}),
    ("tempme-table2", "lora", "msrvtt", {"r1": 43.7}),
]


def run(row: PublishedRow, is_of_table: bool = True, seed: int = 1, **changed: object) -> RunRecord:
    """Return a complete run on the row's benchmark as MLflow returns it."""
    settings = {**printed_settings(row), "stream": row.stream, "seed": seed, **changed}
    texts = {name: as_text(value) for name, value in settings.items()}
    protocol = "cvlm" if row.stream == "cvlm" else "ctvr"
    tags = {"ctvr.complete": "true", "ctvr.stream": row.stream, "ctvr.paper": row.stream, "ctvr.protocol": protocol}
    tags |= {"ctvr.method": row.method, **({ROW: row.row, TABLE_NAME: row.table} if is_of_table else {})}
    metrics = {f"stream/t2v/{key}": [(2, 20.0)] for key in ("r1", "r5", "r10", "medr", "meanr", "bwf", "rsum")}
    metrics["cost/video_gmacs"] = [(2, 53.0)]
    return RunRecord(f"{row.table}{row.row}{seed}{changed}", row.method, texts, metrics, tags, "FINISHED", "")


def test_small_costs_keep_two_figures_and_no_spread_that_is_none():
    row = printed(*PRINTED[0][:3])
    runs = [run(row, seed=seed) for seed in (1, 2, 3)]  # whose mean is not 0.0493 to the last bit
    for each in runs:
        each.metrics["cost/video_gmacs"] = [(2, 0.0493)]
    (made,) = tables(runs, papers_of=papers_of)
    (column,) = [column for column in more_columns(made.rows, ("gmacs",)) if column.key == "gmacs"]
    assert number(made.rows[0].values["gmacs"], column.digits) == "0.049"


def printed(table: str, row: str, stream: str) -> PublishedRow:
    return next(found for found in published_rows(stream, table) if found.row == row)


@pytest.mark.parametrize(("table", "row", "stream", "values"), PRINTED)
def test_a_papers_row_loses_its_numbers_with_one_other_setting(table, row, stream, values):
    own = printed(table, row, stream)
    (made,) = tables([run(own)], papers_of=papers_of, direction="both")
    assert {key: made.rows[0].paper[key].mean for key in values} == values
    assert made.rows[0].label == row
    text = to_markdown(made)
    assert f"row “{own.label}”" in text
    assert "differs from" not in text
    (made,) = tables([run(own, **{"optim.lr_scale": 3.0})], papers_of=papers_of)
    assert not made.rows[0].paper
    assert f"differs from its paper's row on {stream} in: optim.lr_scale 3.0 (paper 1.0)" in made.rows[0].marks


def test_every_printed_row_that_runs_here_is_found_by_its_settings():
    streams = ("msrvtt-10", "actnet-20", "cvlm", "msrvtt", "lsmdc")
    rows = [row for name in published_tables() for stream in streams for row in published_rows(stream, name)]
    rows = [row for row in rows if row.method]
    assert len(rows) > 80
    papers: dict[tuple[str, str], list[PaperRun]] = {}  # those of a run without a table: of its method and stream
    for row in rows:
        one = (row.method, row.stream)
        papers[one] = papers.get(one) or papers_of(run(row, is_of_table=False))
        assert PaperRun(printed_settings(row), row) in papers[one], (row.table, row.label)


def test_an_ablation_that_was_run_alone_has_the_number_of_its_settings():
    row = printed("ctvr-table2", "framefusion_moe:no-ffa", "msrvtt-10")
    full = printed("ctvr-table2", "framefusion_moe", "msrvtt-10")
    made = tables([run(row, is_of_table=False), run(full, is_of_table=False)], papers_of=papers_of)[0]
    assert {found.paper["r1"].mean for found in made.rows} == {25.87, 17.59}  # Table 1 and Table 2
    assert [found.paper["r1"].mean for found in tables([run(full)], papers_of=papers_of)[0].rows] == [26.25]


def test_off_its_benchmark_a_row_has_no_numbers_and_one_shared_note():
    names = ("framefusion_moe:no-ffa", "framefusion_moe")
    records = [run(printed("ctvr-table2", name, "msrvtt-10"), **{"optim.epochs": 4}) for name in names]
    records[1].settings["optim.lr_scale"] = "50.0"
    for record in records:
        record.tags.update({"ctvr.stream": "shapes-5", "ctvr.paper": ""})
    (made,) = tables(records, papers_of=papers_of)
    text = to_markdown(made).replace("\\_", "_")
    assert not any(row.paper for row in made.rows)
    assert "- Every row differs from its paper's row on msrvtt-10 in: optim.epochs 4 (paper 20)." in text
    assert text.count("optim.epochs") == 1
    assert "also differs from its paper's row on msrvtt-10 in: optim.lr_scale 50.0 (paper 1.0)" in text
    assert "use_ffa" not in text  # the setting that defines the row is not a difference from it
    assert to_csv(made).count("optim.epochs 4 (paper 20)") == 2


def test_rows_of_one_name_are_distinguished_with_their_papers_columns():
    row = printed("tempme-table2", "tempme", "msrvtt")
    (made,) = tables([run(row), run(row, **{"data.batch_size": 4})], papers_of=papers_of)
    assert [found.label for found in made.rows] == ["tempme (data.batch_size=128)", "tempme (data.batch_size=4)"]
    assert {"rsum"} <= {column.key for column in made.columns}
    assert len(made.rows[0].paper) > len(made.rows[1].paper) == 0
