"""A bundle: one small file with the ranks of runs, from which each cell of their table follows (docs/publish.md).

It is a zip file of `bundle.json` and of one array of ranks for each gallery, which NumPy reads. Bundles are read as
untrusted files: sizes are limited, nothing is unpickled, and nothing is extracted to the disk.

Shapes: R runs, T tasks, Q queries.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.data.array_files import check_npy, reason_of
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import write_in_runs
from ctvr.orchestrator.text_files import MIB, read_bytes

FORMAT = 1
ABOUT = "bundle.json"
ALL, OWN = "all", "own"  # galleries: all videos so far, and the videos of the query's task
MEMBERS = (ABOUT, f"{ALL}.npy", f"{OWN}.npy")
LARGEST = 1_000_000  # bytes of a bundle
MAX_MEMBER_BYTES = 32 * MIB  # bytes of a decompressed member
MOST_RUNS = 1000
MOST_RANKS, MOST_LAST = 4_000_000, 1_000_000  # ranks of a gallery: after all tasks, and after the last one
START = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can state


@dataclass(frozen=True)
class Bundle:
    """The content of a bundle."""

    about: Mapping[str, Any]  # content of bundle.json
    ranks: Mapping[str, np.ndarray]  # gallery -> (R, 2, T, Q): counts of better and of equal videos; 0 before its task

    def tasks_of(self, run: int) -> np.ndarray:
        """Return the 0-based task of each query (Q,) in the task order of a run."""
        return np.array(self.about["orders"][self.about["runs"][run]["order"]])


def digest(about: Mapping[str, Any], ranks: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of a bundle's content. It does not depend on dtypes or compression."""
    arrays = {name: [list(each.shape), _sha256(each)] for name, each in ranks.items()}
    return digest_of([{name: value for name, value in about.items() if name != "digest"}, arrays])


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, "<u8").ravel().data).hexdigest()


def check_size(runs: int, tasks: int, queries: int, where: object) -> None:
    """Check that a bundle of so many runs, tasks and queries needs at most about 1 GB of memory.

    Raises:
        ConfigError: if it has too many ranks; `where` is the bundle.
    """
    if runs * tasks * queries > MOST_RANKS or runs * queries > MOST_LAST:
        has = f"has {runs} runs x {tasks} tasks x {queries} queries"
        most = f"at most {MOST_RANKS:,} ranks, and {MOST_LAST:,} after the last task, are possible"
        raise ConfigError(f"{has}; {most}", where, remedy="Publish single runs of it.")


def to_bytes(bundle: Bundle) -> bytes:
    """Return the file of a bundle; equal bundles give equal bytes.

    Raises:
        ConfigError: if it is larger than `LARGEST` bytes.
    """
    members = {ABOUT: _text(bundle.about)}
    for name, array in bundle.ranks.items():
        file = io.BytesIO()
        smallest = np.min_scalar_type(int(array.max(initial=0)))
        np.lib.format.write_array(file, array.astype(smallest.newbyteorder("<")), version=(1, 0))
        members[f"{name}.npy"] = file.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, START)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, members[name], compresslevel=9)
    if len(content := out.getvalue()) > LARGEST:
        fault = f"its ranks need {len(content) / 1e6:.1f} MB, more than {LARGEST / 1e6:g} MB"
        raise ConfigError(fault, f"bundle {bundle.about['name']}", remedy="Publish single runs of it.")
    return content


def read_bundle(path: Path) -> Bundle:
    """Read a bundle of an unknown author.

    Raises:
        ConfigError: if the file is too large, damaged, or not a bundle.
    """
    content = read_bytes(path, LARGEST)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = _read_members(archive)
        about = json.loads(members.pop(ABOUT))
        bundle = Bundle(about, {name.removesuffix(".npy"): _read_array(each) for name, each in members.items()})
        _check_form(bundle)
    except ConfigError as error:
        raise error.at(str(path)) from error
    except Exception as error:  # of zipfile, zlib, json and NumPy, and KeyError or TypeError for a wrong structure
        fault = f"is damaged, or not a bundle ({reason_of(error)})"
        raise ConfigError(fault, path, remedy="Use a file of `ctvr runs publish`.") from error
    return bundle


def _read_members(archive: zipfile.ZipFile) -> dict[str, bytes]:
    found = {}
    for entry in archive.infolist():
        if entry.filename not in MEMBERS or entry.filename in found:
            raise ValueError(f"it has the member {entry.filename[:60]!r}")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.file_size > MAX_MEMBER_BYTES:
            raise ValueError(f"{entry.filename} has {entry.file_size} bytes or another compression")
        size = entry.file_size
        entry.file_size += 1  # content is cut at this size; a byte more than declared shows that more follows
        with archive.open(entry) as file:
            found[entry.filename] = file.read(size + 1)  # inflates no more than that, unlike ZipFile.read
        if len(found[entry.filename]) != size:
            raise ValueError(f"{entry.filename} has other than its declared {size} bytes")
    return found


def _read_array(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    check_npy(file, len(content))
    return np.lib.format.read_array(file, allow_pickle=False)


def _text(about: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(about, indent=1, sort_keys=True, allow_nan=False)}\n".encode()


def _check_form(bundle: Bundle) -> None:
    """Check the types and shapes that the functions on bundles rely on.

    Raises:
        ValueError, KeyError, TypeError: for a wrong structure.
        ConfigError: for too many ranks.
    """
    about, queries = bundle.about, bundle.about["queries"]
    if about["format"] != FORMAT:
        raise ValueError(f"its format is {about['format']!r:.20}, not {FORMAT}")
    _require(isinstance(about["name"], str) and isinstance(about["digest"], str), "name and digest")
    _require(_are_texts(queries) and len(set(queries)) == len(queries) > 0, "queries, which must differ")
    _require(1 <= len(about["runs"]) <= MOST_RUNS, f"1 to {MOST_RUNS} runs")
    for run in about["runs"]:
        texts = [run["id"], run["name"], run["key"], *run["settings"].values(), *run["tags"].values()]
        _require(_are_texts([*texts, *run["made_of"].values(), *run["commits"]]), "texts of each run")
        _require(run["parameters"] is None or type(run["parameters"]) in (int, float), "parameters")
    _require(len({run["id"] for run in about["runs"]}) == len(about["runs"]), "runs, which must differ")
    tasks = [set(order) for order in about["orders"]]
    _require(all(_are_counts(order) and len(order) == len(queries) for order in about["orders"]), "orders")
    _require(all(each == set(range(len(tasks[0]))) for each in tasks), "the tasks of orders")
    _require(_are_counts(orders := [run["order"] for run in about["runs"]]) and max(orders) < len(tasks), "orders")
    captions = about.get("captions", queries)
    _require(_are_texts(captions) and len(captions) == len(queries), "captions")
    shape = (len(about["runs"]), 2, len(tasks[0]), len(queries))
    check_size(shape[0], *shape[2:], "bundle")
    _require(bool(bundle.ranks), "ranks")
    for name, array in bundle.ranks.items():
        _require(array.dtype.kind == "u" and array.shape == shape, f"ranks of shape {shape} in {name}.npy")


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(f"it lacks valid {what}")


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
