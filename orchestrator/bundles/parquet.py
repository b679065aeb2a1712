"""Ranks of a bundle as one table of Apache Parquet, for pandas and DuckDB."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from ctvr.orchestrator.bundles.bundle import Bundle
from ctvr.orchestrator.output_dir import write_in_runs


def write_parquet(bundle: Bundle, path: Path) -> int:
    """Write a row for each rank; return their number.

    Columns: run, row and seed (of the table), gallery (`all` or `own`), learned (number of tasks), query, task (of the
    query, from 1), better, equal, rank (1 is best; a tie counts 1/2).

    Raises:
        ConfigError: if the file cannot be written.
    """
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    rows = {run: (row["label"], seed) for row in bundle.about["table"] for run, seed in zip(row["runs"], row["seeds"])}
    parts = []
    for gallery, ranks in bundle.ranks.items():
        for place, run in enumerate(bundle.about["runs"]):
            tasks = bundle.tasks_of(place)
            done, query = np.nonzero(tasks[None] <= np.arange(ranks.shape[2])[:, None])
            better, equal = ranks[place][:, done, query].astype(np.int64)
            label, seed = rows.get(run["id"], ("", ""))
            of_run = {"run": run["id"], "row": label, "seed": seed, "gallery": gallery}
            columns = {name: arrow.array([value] * len(done)).dictionary_encode() for name, value in of_run.items()}
            columns |= {"learned": done + 1, "query": arrow.array(bundle.about["queries"]).take(arrow.array(query))}
            columns |= {"task": tasks[query] + 1, "better": better, "equal": equal, "rank": 1 + better + equal / 2}
            parts.append(arrow.table(columns))
    out, whole = io.BytesIO(), arrow.concat_tables(parts)
    parquet.write_table(whole, out)
    write_in_runs(path, out.getvalue(), "Use another file.")
    return int(whole.num_rows)
