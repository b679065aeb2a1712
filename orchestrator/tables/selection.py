"""Selection of a table's runs: one split, one set of videos, and no runs that were used to select a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.tables.task_orders import content_of

if TYPE_CHECKING:
    from ctvr.orchestrator.tables.significance import Ranks
    from ctvr.orchestrator.tracking.run_record import RunRecord

SPLITS = {"test": "test", "val": "validation"}  # split -> its name in text; the first is the default
CHOSE = ("ctvr.trial", "ctvr.confirms")  # tags of runs whose purpose is to choose settings: trials, confirmations


def split_of(run: RunRecord) -> str:
    """Return the split on which a run was measured."""
    return str(run.settings.get("evaluation.split", run.tags.get("ctvr.split", "test")))


def select(records: Sequence[RunRecord], split: str = "", of_stream: bool = False) -> tuple[list[RunRecord], list[str]]:
    """Return the runs that can be in one table, and a note for each reason to leave out other runs.

    Args:
        records: runs of one stream.
        split: the split to keep; empty: test if a complete run was measured on it, otherwise validation.
        of_stream: whether the runs are all those of a stream, not of a sweep. Trials and confirmations are then left
            out if other runs remain: a row must not contain the seed by which it was chosen.

    Returns:
        The runs that are kept, including incomplete runs, and a sentence for each reason to leave out runs.

    Raises:
        ConfigError: if no complete run was measured on `split`.
    """
    complete = [run for run in records if run.tags.get("ctvr.complete") == "true"]
    left_out = []
    found = {split_of(run) for run in complete}
    if split and complete and split not in found:
        stream = complete[0].tags.get("ctvr.stream", "")
        raise ConfigError(f"no complete run of {stream} is measured on {SPLITS[split]} videos.", f"--split {split}")
    kept_split = split or next((each for each in SPLITS if each in found), "test")
    for other in sorted(found - {kept_split}):
        count = sum(split_of(run) == other for run in complete)
        left_out.append(f"{_runs(count)} on {SPLITS.get(other, other)} videos (use --split {other})")
    kept = [run for run in complete if split_of(run) == kept_split]
    if of_stream and (others := [run for run in kept if not any(run.tags.get(tag) for tag in CHOSE)]):
        if len(others) < len(kept):
            left_out.append(f"{_runs(len(kept) - len(others))} by which searches chose settings (use --sweep NAME)")
        kept = others
    if kept:
        newest = content_of(max(kept, key=lambda run: run.started))
        same = [run for run in kept if content_of(run) == newest]
        if len(same) < len(kept):
            left_out.append(
                f"{_runs(len(kept) - len(same))} on earlier versions of the stream (tag ctvr.stream_digest)"
            )
        kept = _with_newest_frames(same)
        if len(kept) < len(same):
            left_out.append(
                f"{_runs(len(same) - len(kept))} whose frames or features differ from those of the newest run with "
                "equal settings (tag ctvr.frames)"
            )
    notes = [f"Left out: {text}." for text in left_out]
    unfinished = [run for run in records if run.tags.get("ctvr.complete") != "true" and split_of(run) == kept_split]
    return [*kept, *unfinished], notes


def _with_newest_frames(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs that read the same frames (tag `ctvr.frames`) as the newest run with equal frame settings.

    A file of videos or features can change under the same name, while the digest of the stream remains equal. Runs
    without the tag are kept.
    """
    newest: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.started):
        newest[_of_frames(run)] = run.tags.get("ctvr.frames") or newest.get(_of_frames(run), "")
    return [run for run in runs if run.tags.get("ctvr.frames", "") in ("", newest[_of_frames(run)])]


def _of_frames(run: RunRecord) -> str:
    """Return a digest of the settings that determine which frames a run reads."""
    names = [name for name in run.settings if name.startswith(("data.", "evaluation."))]
    return digest_of({name: str(run.settings.get(name)) for name in (*names, "stream", "backbone.name")})


def measured_on(kept: Sequence[RunRecord], ranks: Mapping[str, Ranks]) -> str:
    """Return a sentence that names the split of a table, with the numbers of captions and videos if ranks are stored.

    Streams of images are evaluated by classification, without ranks.
    """
    split = SPLITS.get(split_of(kept[0]), split_of(kept[0]))
    captions = max((ranks[run.run_id].of for run in kept if run.run_id in ranks), key=len, default={})
    if not captions:
        return f"Measured on the {split} split."
    videos = {query.rpartition("#")[0] or query for query in captions}
    return f"Measured on the {split} split: {len(captions)} captions of {len(videos)} videos."


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"
