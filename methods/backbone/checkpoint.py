"""Reads CLIP checkpoints from common formats and renames their tensors for the target architecture.

The same weights are stored in many forms: with the prefix of a wrapper (`module.`, `_orig_mod.`, `model.`, `clip.`),
together with their moving average, in several files, or under the names of transformers. A warning names a tensor that
is ignored. An error about tensors that do not fit gives names and shapes in the file and in the model.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ctvr.methods.backbone.huggingface import ROOT, is_theirs, under_open_clip_names
from ctvr.methods.backbone.weights import read_weights

log = logging.getLogger(__name__)

ENDINGS = re.compile(r"\.(safetensors|pt|pth|bin|ckpt|tar|index\.json)(\.\d+)?$")  # CLIP4Clip adds the epoch: .bin.0
OF_A_FOLDER = (
    *("model.safetensors", "open_clip_model.safetensors", "model.safetensors.index.json"),
    *("open_clip_pytorch_model.bin", "pytorch_model.bin", "pytorch_model.bin.index.json"),
)
ROOTS = ("visual.", ROOT)  # prefixes of image tower names in open_clip and transformers
# Parts of names from torch.compile, FSDP, activation checkpointing, DeepSpeed and DistributedDataParallel
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "module"}
_AVERAGED = re.compile(r"(^|[._])(ema|shadow|avg|averaged?|swa|teacher|momentum|target|m)([._]|$)")
# Entries of OpenAI's archives, and buffers of transformers, old versions of open_clip and torch's weight averaging
_NO_WEIGHTS = re.compile(r"(^|\.)(input_resolution|context_length|vocab_size|attn_mask|position_ids|n_averaged)$")
_ADAPTER = "contains an adapter (LoRA). Merge it into its base model, and use the complete weights."
_OF_TEXT = ("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection")


def has_weights(folder: Path) -> bool:
    """Return whether a folder contains a weights file with a usual name, such as model.safetensors."""
    return any((folder / name).is_file() for name in OF_A_FOLDER)


def files_of(path: Path) -> list[Path]:
    """List the files that contain the weights: the file itself, the file in a folder, or all files that an index lists.

    Raises:
        FileNotFoundError: if the file, or a file that the index lists, does not exist.
        ValueError: for a folder without weights, or an invalid index.
    """
    if os.path.isdir(path):  # `Path.is_dir` raises for a name that is too long
        found = next((path / name for name in OF_A_FOLDER if (path / name).is_file()), None)
        if found is None:
            raise ValueError(f"{path}: {_describe_missing(path)}")
        path = found
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such weights file. Use the path of a .safetensors or .pt file.")
    if not path.name.endswith(".index.json"):
        return [path]
    try:
        names = sorted({str(name) for name in json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"{path}: is not an index of weights (it lacks weight_map). Use the path of the weights file itself."
        ) from None
    if not names:
        raise ValueError(
            f"{path}: its weight_map is empty. Download the index again, or use the path of the weights file itself."
        )
    if outside := [name for name in names if Path(name).name != name]:
        raise ValueError(
            f"{path}: lists {outside[0]!r:.80}, which is not a file in its folder. Use the index next to the files."
        )
    if pickled := [name for name in names if not name.endswith(".safetensors")]:
        raise ValueError(f"{path}: lists {pickled[0]!r:.80}, a pickle. Convert the files to .safetensors.")
    files = [path.parent / name for name in names]
    if missing := [file for file in files if not os.path.isfile(file)]:
        raise FileNotFoundError(f"{missing[0]}: no such weights file, but {path.name} lists it. Download it.")
    return files


def _describe_missing(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return f"the folder {_ADAPTER}"
    if parts := sorted(file.name for file in folder.iterdir() if _match_part(file.name)):
        return f"the folder contains {parts[0]} without an index. Download {OF_A_FOLDER[2]}."
    return f"the folder does not contain {' or '.join(OF_A_FOLDER)}. Use the path of the weights file itself."


def _match_part(name: str) -> re.Match[str] | None:
    """Match the name of a file that is one of several parts, such as `model-00001-of-00002.safetensors`."""
    match = re.search(r"-(\d+)-of-(\d+)\.(safetensors|bin|pt)$", name)
    return match if match and int(match[2]) > 1 else None


def read_checkpoint(path: Path, sha256: str = "", roots: tuple[str, ...] = ROOTS) -> dict[str, Tensor]:
    """Read weights as float32 on the CPU, and remove wrapper prefixes from their names.

    Args:
        path: a file, a folder in Hugging Face's layout, or an index of several files.
        sha256: SHA-256 of the file; required for a pickle.
        roots: prefixes of the image tower's tensors, before which a wrapper prefix is searched.

    Raises:
        FileNotFoundError: see `files_of`.
        ValueError: one line; see `files_of`, `read_weights` and `without_prefix`.
    """
    files = files_of(path)
    if sha256 and len(files) > 1:
        raise ValueError(
            f"{path}: has {len(files)} files, but sha256 applies to one. Omit it; .safetensors does not need it."
        )
    state: dict[str, Tensor] = {}
    for file in files:
        state |= read_weights(file, sha256)
    found = without_prefix(state, path, roots)
    return {name: value.float() if value.is_floating_point() else value for name, value in found.items()}


def without_prefix(state: Mapping[str, Tensor], source: Path, roots: tuple[str, ...] = ROOTS) -> dict[str, Tensor]:
    """Select the tensors of one CLIP among the tensors of a file, and remove the prefix from their names.

    Moving averages, which are recognized by their names, are excluded.

    Raises:
        ValueError: if the file contains several CLIPs with different weights.
    """
    state = _unwrap(state)
    counts: dict[str, int] = {}
    for name in state:
        if (before := _find_prefix(name, roots)) is not None:
            counts[before] = counts.get(before, 0) + 1
    if not counts:
        return dict(state)
    whole = [prefix for prefix, count in counts.items() if count == max(counts.values())]
    plain = [prefix for prefix in whole if not _AVERAGED.search(prefix)] or whole
    if len(plain) > 1:
        first, *others = plain
        if any(not _are_equal(_select(state, first), _select(state, other)) for other in others):
            raise ValueError(
                f"{source}: contains different weights under {_format(plain[0])} and under {_format(plain[1])}. "
                "Save the intended ones in a separate file."
            )
    taken = plain[0]
    left = [prefix for prefix in whole if prefix not in plain]
    if left:
        log.warning("%s: has weights twice; %s is read, %s is not.", source, _format(taken), _format(left[0]))
    inner = tuple(prefix for prefix in left if prefix.startswith(taken))
    found = {name: value for name, value in _select(state, taken).items() if not (taken + name).startswith(inner)}
    if rest := [name for name in state if not name.startswith((taken, *left))]:
        log.warning("%s: outside %s, %s is not read (%d in all).", source, _format(taken), rest[0], len(rest))
    return found


def _unwrap(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        short = ".".join(word for word in name.split(".") if word not in _WRAPPERS)
        found[short if short and short not in state and short not in found else name] = value
    return found


def _find_prefix(name: str, roots: tuple[str, ...]) -> str | None:
    places = [match.start() for root in roots for match in re.finditer(rf"(?:^|(?<=\.)){re.escape(root)}", name)]
    return name[: min(places)] if places else None


def _select(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _are_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def _format(prefix: str) -> str:
    return f"{prefix.rstrip('.')!r}" if prefix else "no prefix"


def fitted(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], source: object, name: str) -> dict[str, Tensor]:
    """Rename tensors to the names of an open_clip model, and check that all exist with the right shapes.

    Args:
        state: tensors from `read_checkpoint`.
        wanted: state dict of the model.
        source: the file as the user named it, for messages.
        name: name of the architecture.

    Raises:
        ValueError: one line, for names, shapes or values that do not fit.
    """
    found = under_open_clip_names(state, wanted) if is_theirs(state) else dict(state)
    found = _move_text_names(found, wanted)
    found = {each: value for each, value in found.items() if each in wanted or not _NO_WEIGHTS.search(each)}
    for each in ("logit_scale", "logit_bias"):
        if each in found and each in wanted and found[each].numel() == wanted[each].numel() == 1:
            found[each] = found[each].reshape(wanted[each].shape)
    if is_new := "logit_scale" in wanted and "logit_scale" not in found:
        found["logit_scale"] = wanted["logit_scale"]
    roots = {each.partition(".")[0] for each in wanted}
    heads = [each for each in found if each.partition(".")[0] not in roots]
    if heads and wanted.keys() <= found.keys():  # a head for another task, next to both towers
        found = {each: value for each, value in found.items() if each not in heads}
        log.warning("%s: outside the towers, %s is not read (%d in all).", source, heads[0], len(heads))
    check(found, wanted, source, name)
    if is_new:
        log.warning("%s: has no logit_scale; the temperature of %s is a new one.", source, name)
    return found


def check(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], source: object, name: str) -> None:
    """Reject weights whose names, shapes or values do not fit an architecture.

    Args:
        found: the weights.
        wanted: state dict of the model.
        source: the file as the user named it, for messages.
        name: name of the architecture.

    Raises:
        ValueError: one line that names a missing and an unknown tensor, or a tensor of another shape or with invalid
            values.
    """
    missing = [each for each in wanted if each not in found and not each.endswith("attn_mask")]
    unknown = [each for each in found if each not in wanted]
    if missing or unknown:
        raise ValueError(
            f"{source}: does not fit {name}: {_format_count(missing, 'missing')}; {_format_count(unknown, 'unknown')}. "
            f"{_remedy_of_names(missing, unknown, wanted, source)}"
        )
    if other := [each for each in found if found[each].shape != wanted[each].shape]:
        theirs, ours = tuple(found[other[0]].shape), tuple(wanted[other[0]].shape)
        raise ValueError(
            f"{source}: does not fit {name}: {other[0]} is {theirs} in the file and {ours} in {name} "
            f"({len(other)} in all). {_remedy(other)}"
        )
    for each, value in found.items():
        if wanted[each].is_floating_point() and not value.is_floating_point():
            raise ValueError(f"{source}: {each} contains {value.dtype} values. Use a file that is not quantized.")
        if value.is_floating_point() and not torch.isfinite(value.to(wanted[each].dtype)).all():
            raise ValueError(f"{source}: {each} contains NaN or infinite values. Use an earlier checkpoint.")


def _format_count(names: list[str], what: str) -> str:
    if not names:
        return f"0 tensors are {what}"
    return f"{len(names)} tensor{'s are' if len(names) > 1 else ' is'} {what}, such as {names[0]}"


def _remedy_of_names(missing: list[str], unknown: list[str], wanted: Mapping[str, Tensor], source: object) -> str:
    if any("lora_" in each for each in unknown):
        return f"It {_ADAPTER}"
    if part := _match_part(str(source)):
        return f"It is part {int(part[1])} of {int(part[2])}. Use the folder of all parts, or their .index.json."
    tower = {each for each in wanted if each.startswith("visual.")}
    if not unknown and tower and tower.isdisjoint(missing):
        return "It lacks a complete text tower. Use weights of both towers."
    if not unknown and tower and tower <= {*missing}:
        return "It lacks the image tower. Use weights of both towers."
    return "Check backbone.name." if unknown else "Use a file with all tensors, or check backbone.name."


def _remedy(names: list[str]) -> str:
    if all(each.endswith(("positional_embedding", "pos_embed")) for each in names):
        return "The file has another image size or context length. Set backbone.name to an architecture with that one."
    return "Check backbone.name."


def _move_text_names(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add or remove the prefix `text.` of a text tower's tensors, because open_clip has models with and without it."""
    if any(name.startswith("text.") for name in wanted):
        return {f"text.{name}" if name.startswith(_OF_TEXT) else name: value for name, value in state.items()}
    short = {name: name.removeprefix("text.") for name in state}
    return {short[name] if short[name].startswith(_OF_TEXT) else name: value for name, value in state.items()}
