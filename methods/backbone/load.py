"""Loads a backbone: a shipped tiny CLIP, UMT or an open_clip architecture, with pre-trained or random weights."""

from __future__ import annotations

import difflib
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.architectures import IMPORTED, SHIPPED, UMT, VECTORS
from ctvr.methods.backbone.checkpoint import ENDINGS, files_of, fitted, has_weights, read_checkpoint
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.conv_stem import ConvStem
from ctvr.methods.backbone.descriptions import get_model_config
from ctvr.methods.backbone.entry_points import entry_point, load_entry_point
from ctvr.methods.backbone.hub import fetch, fetch_weights, offline
from ctvr.methods.backbone.openclip_towers import EndMarked, WholeText, text_of, vision_of
from ctvr.methods.backbone.own_architecture import is_own, read_architecture, tokenizer_digests, weights_of
from ctvr.methods.backbone.own_model import build_own, is_of_transformers
from ctvr.methods.backbone.umt_load import load_umt
from ctvr.methods.backbone.vectors import CaptionTable, Vectors
from ctvr.methods.backbone.weight_settings import WeightSettings, weight_settings
from ctvr.methods.plug_ins import installed
from ctvr.methods.settings import SettingError
from ctvr.methods.user_paths import expand_path

WITHOUT_NETWORK = (
    "On a machine with a network, run `ctvr cache weights {} {}`; copy its folder here, and set <weights>=FOLDER."
)
VERSION: str = importlib.metadata.version("open_clip_torch")  # version of the library that defines the towers


def load_backbone(
    name: str,
    weights: str = "openai",
    seed: int = 0,
    sha256: str = "",
    vocabulary: str = "",
    chosen: Mapping[str, Any] | None = None,
    saved: WeightSettings | None = None,
) -> Clip:
    """Load an open_clip model as a backbone.

    Args:
        name: `tiny-clip` or `tiny-clip-stem` (shipped with this package), `UMT-B-16`, `UMT-L-16`, `vectors` (a
            placeholder of width 1), an open_clip architecture such as `ViT-B-32-quickgelu`, a path
            (own_architecture.py) or an entry point (entry_points.py). OpenAI's weights need a -quickgelu name.
        weights: `shipped` (of a shipped model, a folder of an architecture or an entry point), an open_clip tag such as
            `openai` (downloaded by open_clip), a local file (.safetensors, .pt), a folder in Hugging Face's layout, or
            `random`.
        seed: seed of `random` weights.
        sha256: SHA-256 of the local file; required for a pickle (any file except .safetensors).
        vocabulary: path of BERT's vocab.txt; required for UMT, rejected for other backbones.
        chosen: the user's settings for a local file, see `weight_settings`.
        saved: settings of a saved model, whose weights the caller loads later; they replace the settings of `weights`.

    Raises:
        ValueError: for an unknown name or tag, a file that does not fit the architecture, or a pickle whose digest
            is not `sha256`.
        FileNotFoundError: if `weights` is a path that does not exist.
    """
    check_backbone(name, weights, sha256, vocabulary, chosen)
    weights = weights_of(name, weights)
    if (point := entry_point(name)) is not None:
        return load_entry_point(point, weights, seed, sha256)
    if name == VECTORS:  # a placeholder of width 1, because no stream is given
        return Vectors(
            1, CaptionTable(torch.zeros(1, 1), torch.arange(2)), lambda texts: torch.zeros(len(texts), 1).long()
        )
    if name in UMT:
        return _umt(name, weights, seed, sha256, vocabulary)
    if name in SHIPPED:
        source, tokenize, mean, std = _tiny_clip(name, weights, seed, sha256)
    else:
        own = saved or find_weight_settings(name, weights, chosen)
        assert own is not None  # not shipped, not UMT
        source, tokenize = _open_clip(name, weights, seed, sha256, own)
        mean, std = list(own.mean), list(own.std)
    vision, text = vision_of(source, name), text_of(source, is_of_transformers(tokenize))
    if isinstance(text, WholeText):
        tokenize = EndMarked(tokenize, text)
    clip = Clip(source, tokenize, mean, std, name, vision, text).eval()
    if name not in SHIPPED:
        clip.weight_settings = own
    return clip


def find_weight_settings(
    name: str, weights: str, chosen: Mapping[str, Any] | None = None, group: str = "backbone"
) -> WeightSettings | None:
    """Return the `weight_settings` of weights; None for shipped models, UMT, `vectors` and entry points.

    Raises:
        ValueError: see `weight_settings`; also if `chosen` is given for a backbone whose settings are fixed.
    """
    weights = weights_of(name, weights)
    if name in SHIPPED or name in UMT or name == VECTORS or entry_point(name):
        if chosen:
            raise ValueError(f"{next(iter(chosen))}: {name} has a fixed value of this setting. Omit it.")
        return None
    return weight_settings(name, weights, expand_path(weights) if is_path(weights) else None, chosen, group)


def check_backbone(
    name: str,
    weights: str = "openai",
    sha256: str = "",
    vocabulary: str = "",
    chosen: Mapping[str, Any] | None = None,
    group: str = "backbone",
) -> None:
    """Reject an unknown name, an unknown tag or a missing file before a backbone is built.

    See `load_backbone` for the arguments, and `weight_settings` for `group`.

    Raises:
        ValueError: for an unknown name or tag, or an argument that does not apply.
        FileNotFoundError: if `weights` is a path that does not exist.
    """
    weights = weights_of(name, weights)
    if sha256 and not is_path(weights):
        raise SettingError(f"<sha256> applies to a file, and <weights>={weights!r} is not a file", "Omit it.")
    if vocabulary and name not in UMT:
        raise SettingError(f"<vocabulary>={vocabulary!r} applies to UMT only; {name} has its own tokenizer", "Omit it.")
    if name == VECTORS:
        known, others = [IMPORTED], IMPORTED
    elif name in SHIPPED or name in UMT:
        known, others = (
            (["shipped"], "shipped, random or a file") if name in SHIPPED else ([], "its authors' file, or random")
        )
    elif entry_point(name):
        known, others = ["shipped"], "shipped, or a file with the names of its weights"
    else:
        known = tags_of(name)
        others = f"random, a file, or one of: {', '.join(known)}" if known else "random or a file"
    if "://" in weights:
        raise SettingError(f"<weights>={weights!r} is a URL", "Download the file, and set <weights> to its path.")
    if weights == name and is_own(name) and not has_weights(expand_path(name)):
        lacking = "the folder does not contain weights, such as model.safetensors"
        raise SettingError(f"<name>={name}: {lacking}", "Set <weights> to random or a file.")
    if is_path(weights):
        files_of(expand_path(weights))
    elif weights not in ("random", *known) or (weights == "random" and entry_point(name)):
        raise ValueError(f"{name} does not have weights called {weights!r}. Use {others}.")
    find_weight_settings(name, weights, chosen, group)


def tags_of(name: str) -> list[str]:
    """Return open_clip's tags of weights for an architecture; an empty list for an architecture in the user's files.

    Raises:
        SettingError: for an unknown architecture, with the closest name.
    """
    import open_clip  # slow import (seconds), deferred until a backbone is checked

    if is_own(name):
        read_architecture(name)
        return []
    if name not in (models := open_clip.list_models()):
        own = (*SHIPPED, *UMT, *sorted(installed("backbones")))
        close = f"./{name}" if os.path.isdir(name) else _closest(name, [*own, *models])
        hint = f"Did you mean {close}? " if close else ""
        raise SettingError(
            f"no backbone called {name!r}",
            f"{hint}Use {', '.join(own)}, one of open_clip.list_models(), or the path of an architecture.",
            f"<name>={close}" if close else "",
        )
    return list(open_clip.list_pretrained_tags_by_model(name))


def describe_architecture(name: str) -> dict[str, Any]:
    """Return the configuration of an open_clip architecture or of the user's own file; empty for an unknown name.

    It includes the version of timm or transformers if that library defines a tower, and digests of a user's tokenizer.
    """
    import open_clip

    if is_own(name):
        if found := get_model_config(name) or {}:
            found |= {"tokenizer": tokenizer_digests(name, found)}
    elif name in open_clip.list_models():
        found = dict(open_clip.get_model_config(name))
    else:
        return {}
    towers = {"timm_model_name": "timm", "hf_model_name": "transformers"}
    text = json.dumps(found)
    used = [library for field, library in towers.items() if f'"{field}"' in text and find_spec(library)]
    return found | {library: importlib.metadata.version(library) for library in used}


def _closest(name: str, known: Sequence[str]) -> str:
    """Return the known architecture with the closest name, or "" if none is close.

    The given name may be that of a Hugging Face model, such as openai/clip-vit-base-patch32.
    """
    plain = re.sub(r"^[\w.-]+/(?=[a-z])", "", name.lower()).replace("/", "-").replace("_", "-").replace("patch", "")
    for long, short in (("base", "b"), ("large", "l"), ("huge", "h"), ("clip-vit", "vit")):
        plain = re.sub(rf"\b{long}\b", short, plain)
    if siglip := re.fullmatch(r"(siglip2?)-(\w+-\d+)(?:-224)?(-\d+)?", plain):
        plain = f"vit-{siglip[2]}-{siglip[1]}{siglip[3] or ''}"
    folded = {each.lower().replace("_", "-"): each for each in known}
    if name.lower().startswith("openai/") and f"{plain}-quickgelu" in folded:
        plain += "-quickgelu"
    begins = [each for each in folded if plain.startswith(f"{each}-")]
    near = difflib.get_close_matches(plain, folded, n=1)
    found = plain if plain in folded else max(begins, key=len, default="") or (near[0] if near else "")
    return folded.get(found, "")


def _tiny_clip(
    name: str, weights: str, seed: int, sha256: str
) -> tuple[nn.Module, Callable[[list[str]], Tensor], list[float], list[float]]:
    from open_clip import CLIP  # slow import (seconds), deferred until a tower is built
    from open_clip.tokenizer import SimpleTokenizer

    folder = SHIPPED[name]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = SimpleTokenizer(
        bpe_path=str(folder / "bpe.txt.gz"), context_length=config["model"]["text_cfg"]["context_length"]
    )
    stem = config["model"].pop("stem", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source = CLIP(**config["model"])
        if stem:
            source.visual.conv1 = ConvStem(stem, config["model"]["vision_cfg"]["width"])
    if weights == "shipped":
        file = folder / "weights.safetensors"
        if hashlib.sha256(file.read_bytes()).hexdigest() != config["sha256"]:
            raise ValueError(f"{file}: damaged (its digest is not the one in config.json). Install the package again.")
        _load_weights(source, file, name=name)
    elif weights != "random":
        _load_weights(source, expand_path(weights), sha256, name)
    return source, tokenizer, config["mean"], config["std"]


def _umt(name: str, weights: str, seed: int, sha256: str, vocabulary: str) -> Clip:
    state = None if weights == "random" else read_checkpoint(expand_path(weights), sha256, ("vision_encoder.",))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return load_umt(name, state, expand_path(vocabulary) if vocabulary else None, weights).eval()


def _open_clip(
    name: str, weights: str, seed: int, sha256: str, own: WeightSettings
) -> tuple[nn.Module, Callable[[list[str]], Tensor]]:
    import open_clip

    if is_own(name):
        source, tokenize = build_own(name, seed, own)
        if is_path(weights):
            _load_weights(source, expand_path(weights), sha256, name)
        return source, tokenize
    is_tag = weights != "random" and not is_path(weights)
    usual = weight_settings(name, "random").context_length
    length = None if own.context_length == usual else own.context_length
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            if is_tag:
                fetch_weights(name, weights, WITHOUT_NETWORK.format(name, weights))
            is_cached = "hf_model_name" not in describe_architecture(name).get("text_cfg", {})
            with offline() if is_tag and is_cached else nullcontext():
                source = open_clip.create_model(
                    name,
                    pretrained=weights if is_tag else None,
                    force_quick_gelu=own.activation == "quick_gelu",
                    force_context_length=length,
                )
        except ModuleNotFoundError as error:
            raise ValueError(f"{name} needs the package {error.name}: pip install {error.name}") from error
    if is_path(weights):
        _load_weights(source, expand_path(weights), sha256, name)
    return source, _tokenizer(name, length)


def _tokenizer(name: str, length: int | None = None) -> Callable[[list[str]], Tensor]:
    import open_clip

    is_of_hub = "hf_tokenizer_name" in describe_architecture(name).get("text_cfg", {})
    remedy = "Run this command once on a machine with a network, and copy $HF_HOME (or ~/.cache/huggingface)."
    make = partial(open_clip.get_tokenizer, name, context_length=length)
    try:
        found: Callable[[list[str]], Tensor] = fetch(make, f"the tokenizer of {name}", remedy) if is_of_hub else make()
    except ImportError as error:
        raise ValueError(f"the tokenizer of {name} needs the package transformers: pip install transformers") from error
    return found


def are_here(name: str, weights: str) -> bool:
    """Return whether these weights are on this machine, so that `load_backbone` need not download them."""
    weights = weights_of(name, weights)
    if weights in {"shipped", "random"}:
        return True
    if is_path(weights):
        return os.path.exists(expand_path(weights))
    from huggingface_hub import try_to_load_from_cache
    from open_clip.pretrained import get_pretrained_cfg

    config = get_pretrained_cfg(name, weights)
    repository, url = config.get("hf_hub", "").strip("/"), config.get("url", "")
    files = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
    if repository and any(isinstance(try_to_load_from_cache(repository, file), str) for file in files):
        return True
    return bool(url) and (Path("~/.cache/clip").expanduser() / Path(url).name).is_file()


def brings_weights(name: str) -> bool:
    """Return whether a backbone has its own weights, called `shipped`: true for a folder and for an entry point."""
    if is_own(name):
        return weights_of(name, "shipped") != "shipped"
    return get_model_config(name) is None and entry_point(name) is not None


def is_path(weights: str) -> bool:
    """Return whether the setting `backbone.weights` is the path of a file or folder, not a tag of open_clip."""
    return "/" in weights or ENDINGS.search(weights) is not None


def _load_weights(source: nn.Module, file: Path, sha256: str = "", name: str = "") -> None:
    """Load the weights of a checkpoint into an open_clip model."""
    source.load_state_dict(fitted(read_checkpoint(file, sha256), source.state_dict(), file, name))
