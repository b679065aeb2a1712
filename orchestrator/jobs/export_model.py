"""Export of a trained model for Hugging Face's hub: safetensors, settings and a card (`ctvr export hf`).

The card is generated from the run's record. Uploading is left to the user.
"""

from __future__ import annotations

import json
import shlex
import statistics
from pathlib import Path
from typing import Any

import yaml

from ctvr.orchestrator.digests import digest_file
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.find_model import find_run
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.output_dir import new_folder, require_new
from ctvr.orchestrator.streams.example_queries import example_queries
from ctvr.orchestrator.tables.setting_diff import run_preprocessing
from ctvr.orchestrator.tracking.run_record import RunRecord

# Licenses of known backbone weights; for other weights, the user must pass --license
LICENCES = {"shipped": "apache-2.0", "random": "apache-2.0", "openai": "mit"}
SHOWN = {
    "stream/t2v/r1": "R@1, text to video (%)",
    "stream/t2v/r5": "R@5, text to video (%)",
    "stream/t2v/r10": "R@10, text to video (%)",
    "stream/t2v/bwf": "backward forgetting (points)",
    "stream/t2v/r1_gain": "R@1 over zero-shot (points)",
    "stream/v2t/r1": "R@1, video to text (%)",
}
WITHOUT_SEED = (
    *("seed", "stream", "evaluation.batch_size", "evaluation.query_chunk", "data.prefetch_threads"),
    *("tracking.mirror", "tracking.keep_checkpoints"),
)


def export_hf(folder: Path, name: str, execution: ExecutionConfig, licence: str = "") -> str:
    """Write a model to a folder that `ctvr.load(folder)` reads, with a model card in `README.md`.

    Args:
        folder: the new folder.
        name: name of a complete run, as for `jobs.find_model.find_run`.
        execution: the runs folder.
        licence: the Hub's name of the license of the weights; "" uses the license of known backbone weights.

    Raises:
        ConfigError: for a folder that is not empty, an unknown model, or weights of an unknown license.
    """
    require_new(folder)
    run = find_run(name, execution)
    groups = ("backbone", "upgrade") if int(run.settings.get("upgrade.task", 0)) else ("backbone",)
    weights = {f"{group}.weights": str(run.settings.get(f"{group}.weights", "")) for group in groups}
    known = {LICENCES.get(named, "") for named in weights.values()}
    licence = licence or (known.pop() if len(known) == 1 else "")
    if not licence:
        named = " and ".join(f"{setting}={value}" for setting, value in weights.items())
        raise ConfigError(f"--license: the license of {named} is unknown. Pass it, for example --license mit.")
    model = load(run.run_id, execution)
    stream = model.stream
    if stream is None:
        raise ConfigError(
            f"model {name}: its stream {run.settings['stream']} does not exist here, but the model card needs it. "
            "Restore the manifest and the videos."
        )
    settings = {**model.settings, "stream": stream.name}  # without paths of this machine
    for setting in (*weights, *(f"{group}.sha256" for group in groups), "backbone.vocabulary"):
        if "/" in (named := str(settings.get(setting, ""))):
            settings[setting] = Path(named).name
    with new_folder(folder) as new:
        save_model(model.trained.method.cpu(), settings, stream, new)
        digests = {
            "model.safetensors": digest_file(new / "model.safetensors"),
            "stream": run.tags.get("ctvr.stream_digest", ""),
            "frames": run.tags.get("ctvr.frames", ""),
            "result": run.tags.get("ctvr.result", ""),
        }
        query = next((caption for caption, _ in example_queries(stream, model.trained.ranks)), "TEXT")
        card = _card(run, stream.name, query, licence, digests, _seeds(run, execution), settings)
        (new / "README.md").write_text(card, encoding="utf-8")
        (new / "provenance.json").write_text(run.tags.get("ctvr.provenance", "{}"), encoding="utf-8")
    return (
        f"written: {folder} (model.safetensors, model.json, provenance.json, README.md), license {licence}\n"
        f"use it: ctvr search 'a text' --model {shlex.quote(str(folder))}\n"
        f"upload it: hf upload OWNER/NAME {shlex.quote(str(folder))}"
    )


def _seeds(run: RunRecord, execution: ExecutionConfig) -> dict[int, float]:
    """Map seeds to R@1 (percent) of this run and of the complete runs that differ from it only in the seed."""
    alike = {key: run.tags.get(key) for key in ("ctvr.method", "ctvr.stream_digest", "ctvr.split", "ctvr.provenance")}
    found = execution.existing_tracker().find_runs(tags={"ctvr.complete": "true"})
    plain = _plain(run)
    return {
        int(other.settings["seed"]): last[1]
        for other in found
        if {key: other.tags.get(key) for key in alike} == alike
        and _plain(other) == plain
        and (last := other.last("stream/t2v/r1"))
    }


def _plain(run: RunRecord) -> dict[str, Any]:
    return {name: value for name, value in run.settings.items() if name not in WITHOUT_SEED}


def _card(
    run: RunRecord,
    stream: str,
    query: str,
    licence: str,
    digests: dict[str, str],
    seeds: dict[int, float],
    settings: dict[str, object],
) -> str:
    values = {label: last[1] for key, label in SHOWN.items() if (last := run.last(key))}
    split, method, seed = run.tags.get("ctvr.split", ""), run.tags.get("ctvr.method", ""), run.settings["seed"]
    metrics = [{"type": label, "value": round(value, 4)} for label, value in values.items()]
    result = {
        "task": {"type": "text-to-video-retrieval"},
        "dataset": {"name": stream, "type": stream, "split": split},
        "metrics": metrics,
    }
    head: dict[str, Any] = {
        "license": licence,
        "library_name": "ctvr",
        "tags": ["text-to-video-retrieval", "continual-learning", method],
        "model-index": [{"name": method, "results": [result]}],
    }
    several = ""
    if len(seeds) > 1:
        mean, spread = statistics.mean(seeds.values()), statistics.stdev(seeds.values())
        several = f" Over the seeds {', '.join(map(str, sorted(seeds)))}: R@1 {mean:.2f} ± {spread:.2f} (sample std)."
    mark = f"\n\n{run.tags['ctvr.mark']}." if run.tags.get("ctvr.mark") else ""
    rows = "\n".join(f"| {label} | {value:.2f} |" for label, value in values.items())
    listed = "\n".join(f"| {name} | `{digest}` |" for name, digest in digests.items() if digest)
    about = "".join(f"\n{name.capitalize()}: {words}.\n" for name, words in run_preprocessing(run).items())
    return f"""---
{yaml.safe_dump(head, sort_keys=False, allow_unicode=True).strip()}
---

# {method} on {stream}

Continual text-to-video retrieval: the tasks of the stream were learned one after another. After the last one, on
{split} videos, among the videos of all tasks:

| metric | value |
|---|---|
{rows}

Seed {seed}.{several}{mark}

## Use

```python
import ctvr

model = ctvr.load("this-folder")
model.search({json.dumps(query, ensure_ascii=False)}, videos="my-videos")
```

The features that were stored during training are not included: the final model encodes the videos.

## Provenance

| what | sha256 |
|---|---|
{listed}

`provenance.json` has the digests of code, weights, versions and device; every setting is below and in `model.json`. The
file also contains the weights of {settings["backbone.name"]} ({settings["backbone.weights"]}), under license {licence}.
{about}
```json
{json.dumps(settings, indent=1, default=str)}
```
"""
