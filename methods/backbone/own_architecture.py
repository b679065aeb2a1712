"""Architectures in the user's files: open_clip's JSON, or the config.json of a CLIP or SigLIP of transformers.

    FILE.json   a configuration of open_clip, an open_clip_config.json or a config.json
    FOLDER      open_clip_config.json or config.json, next to weights (checkpoint.py) and perhaps a tokenizer

Only JSON is read. Code that a file names (`auto_map`, `trust_remote_code`) is never run, and weights that it names
are not downloaded. The module imports neither torch nor open_clip.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctvr.methods.backbone.architectures import open_clip_folder
from ctvr.methods.backbone.json_fields import MAX_SIZE, get_object, get_typed, get_whole, read_object
from ctvr.methods.settings import SettingError
from ctvr.methods.user_paths import expand_path

OPEN_CLIP, TRANSFORMERS = "open_clip_config.json", "config.json"
OF_THE_FOLDER = "transformers"  # hf_tokenizer_name of a folder of transformers, which does not name its tokenizer
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "spiece.model")  # a tokenizer of transformers has one of them
CLIP_WORDS = 49408  # entries of CLIP's vocabulary, which open_clip contains
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf"}
_LARGEST = 2**28  # bytes of a file that may belong to a tokenizer
_SIZES = ("layers", "width", "head_width", "heads", "image_size", "patch_size", "context_length", "vocab_size")
# Largest accepted sizes, if not MAX_SIZE; open_clip's own architectures have up to 56 layers and 901,629 words
_MOST = {"layers": 1000, "num_hidden_layers": 1000, "vocab_size": 10**6}
_FIELDS = ("embed_dim", "vision_cfg", "text_cfg")
_TOKENIZER_OPTIONS = {"clean", "strip_sep_token", "language", "bpe_path"}  # no `trust_remote_code`
# Sizes that transformers leaves out of config.json where they equal these
_CLIP_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_CLIP_VISION |= {"image_size": 224, "patch_size": 32}
_CLIP_TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
_CLIP_TEXT |= {"max_position_embeddings": 77, "vocab_size": CLIP_WORDS}
_SIGLIP_VISION = {"hidden_size": 768, "num_hidden_layers": 12, "image_size": 224, "patch_size": 16}
_SIGLIP_TEXT = {"hidden_size": 768, "num_hidden_layers": 12, "max_position_embeddings": 64, "vocab_size": 32000}


def is_own(name: str) -> bool:
    """Return whether the name of a backbone is a path: FILE.json, or a folder, whose path must contain a slash."""
    if name.endswith(".json") or name.startswith(("/", "./", "../", "~")):
        return True
    return "/" in name and os.path.isdir(expand_path(name))


def own_folder(name: str) -> Path:
    """Return the folder of the user's architecture: the path `name` or, if it is a file, the folder of the file."""
    path = expand_path(name)
    return path if os.path.isdir(path) else path.parent


def weights_of(name: str, weights: str) -> str:
    """Return `weights`, or the folder `name` if it contains the architecture and `weights` is `shipped`."""
    return name if weights == "shipped" and is_own(name) and os.path.isdir(expand_path(name)) else weights


def read_architecture(name: str) -> dict[str, Any]:
    """Read an architecture and return it in open_clip's form, without preprocessing.

    Args:
        name: path for which `is_own` is true.

    Raises:
        SettingError: if the file does not exist.
        ValueError: one line, for a file that is not a configuration of open_clip or transformers.
    """
    file, config = _find(name)
    model = get_object(config, "model_cfg", file) or config
    if model is not config or any(field in model for field in _FIELDS):
        return _checked(model, file)
    if "model_type" in config or "vision_config" in config:
        return _of_transformers(config, file)
    raise ValueError(
        f"{file}: lacks {', '.join(_FIELDS)}, which a configuration of open_clip has. Use a file such as those in "
        "open_clip's folder model_configs, or the folder of a CLIP of transformers."
    )


def own_preprocessing(name: str) -> tuple[dict[str, Any], Path]:
    """Return `preprocess_cfg` of the user's FILE.json, and the file; for a folder, {} and the folder."""
    path = expand_path(name)
    if os.path.isdir(path):
        return {}, path
    return get_object(read_object(path, "an architecture"), "preprocess_cfg", path), path


def has_tokenizer(name: str) -> bool:
    """Return whether the user's folder contains a tokenizer of transformers."""
    folder = expand_path(name)
    return any(os.path.isfile(folder / file) for file in TOKENIZERS)


def tokenizer_digests(name: str, described: Mapping[str, Any]) -> list[str]:
    """Return name and SHA-256 of each file from which a tokenizer next to an architecture may be built.

    The names of these files differ between the tokenizers of transformers. So all files of the folder are listed,
    except weights and files of more than `_LARGEST` bytes.
    """
    text, folder = described["text_cfg"], own_folder(name)
    used = []
    if text.get("hf_tokenizer_name"):
        used = sorted(folder.iterdir()) if has_tokenizer(name) else []
    elif own := (text.get("tokenizer_kwargs") or {}).get("bpe_path"):
        used = [folder / own]
    files = [each for each in used if each.is_file() and each.suffix not in _WEIGHTS]
    small = [each for each in files if each.stat().st_size <= _LARGEST]
    return [f"{each.name} {hashlib.sha256(each.read_bytes()).hexdigest()}" for each in small]


def _find(name: str) -> tuple[Path, dict[str, Any]]:
    path, what = expand_path(name), "an architecture"
    if not os.path.isdir(path):
        if not os.path.isfile(path):
            raise SettingError(f"<name>={name}: no such file or folder", "Use the path of a JSON file or a folder.")
        return path, read_object(path, what)
    files = [path / each for each in (OPEN_CLIP, TRANSFORMERS) if (path / each).is_file()]
    if not files:
        raise SettingError(f"<name>={name}: the folder has neither {OPEN_CLIP} nor {TRANSFORMERS}", "Add one of them.")
    found = [(file, read_object(file, what)) for file in files]
    # `ctvr cache weights` of older versions wrote an open_clip_config.json without sizes
    return next((each for each in found if _is_whole(each[1])), found[-1])


def _is_whole(config: Mapping[str, Any]) -> bool:
    model = config.get("model_cfg", config)
    return "model_type" in config or (isinstance(model, Mapping) and all(field in model for field in _FIELDS))


def _checked(model: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return an open_clip configuration after a check that its towers can be rebuilt without third-party code."""
    if missing := [field for field in _FIELDS if field not in model]:
        raise ValueError(f"{file}: lacks {', '.join(missing)}. Add {'it' if len(missing) == 1 else 'them'}.")
    get_whole(model, "embed_dim", file)
    vision, text = (dict(get_object(model, field, file)) for field in _FIELDS[1:])
    for config in (vision, text):
        _check_sizes(config, file)
    if "multimodal_cfg" in model or "hf_model_name" in text:
        what = "multimodal_cfg" if "multimodal_cfg" in model else "text_cfg.hf_model_name"
        raise ValueError(f"{file}: has {what}, in whose blocks methods cannot act. Use a CLIP or a SigLIP.")
    for config, name in ((vision, "timm_model_name"), (text, "hf_tokenizer_name")):
        value = get_typed(config, name, str, "a text", file) or ""
        if ":" in value or value.startswith(("/", ".", "~")) or (name.startswith("timm") and "/" in value):
            raise ValueError(f"{file}: {name} must be a plain name (got {value!r:.80}). Put its files into a folder.")
    options = get_object(text, "tokenizer_kwargs", file)
    if others := sorted({*options} - _TOKENIZER_OPTIONS):
        raise ValueError(f"{file}: tokenizer_kwargs has {others[0]!r:.80}, which ctvr does not use. Omit it.")
    if "bpe_path" in options and Path(str(options["bpe_path"])).name != options["bpe_path"]:
        raise ValueError(
            f"{file}: bpe_path must be a file next to it (got {options['bpe_path']!r:.80}). Move it there."
        )
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
    return {**model, "vision_cfg": vision, "text_cfg": text}


def _check_sizes(config: Mapping[str, Any], file: Path) -> None:
    """Reject sizes larger than those of any model, which would fill the memory. A size may be a list of numbers."""
    for name in _SIZES:
        value = config.get(name)
        for each in value if isinstance(value, list) else [value]:
            get_whole({name: each}, name, file, _MOST.get(name, MAX_SIZE))


def _of_transformers(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    kind = get_typed(config, "model_type", str, "a text", file) or "clip"
    if "auto_map" in config:
        raise ValueError(f"{file}: auto_map names code, which ctvr does not run. Use an entry point ctvr.backbones.")
    if kind not in ("clip", "siglip"):
        raise ValueError(f"{file}: model_type is {kind!r:.80}. Use a folder of clip or siglip, or an entry point.")
    vision, text = (
        get_object(config, f"{tower}_config", file) or get_object(config, f"{tower}_config_dict", file)
        for tower in ("vision", "text")
    )
    return _of_clip(config, vision, text, file) if kind == "clip" else _of_siglip(vision, text, file)


def _sizes(config: Mapping[str, Any], defaults: Mapping[str, int], file: Path) -> dict[str, int]:
    return {
        name: get_whole(config, name, file, _MOST.get(name, MAX_SIZE)) or default for name, default in defaults.items()
    }


def _of_clip(
    config: Mapping[str, Any], vision: Mapping[str, Any], text: Mapping[str, Any], file: Path
) -> dict[str, Any]:
    seen, read = _sizes(vision, _CLIP_VISION, file), _sizes(text, _CLIP_TEXT, file)
    if seen["hidden_size"] % seen["num_attention_heads"]:
        raise ValueError(f"{file}: hidden_size is not a multiple of num_attention_heads. Download the file again.")
    end = get_typed(text, "eos_token_id", int, "a whole number", file)
    is_last = end in (None, 2, read["vocab_size"] - 1)  # transformers reads an old file's 2 as the largest id
    activation = str(text.get("hidden_act", "quick_gelu"))
    return {
        "embed_dim": get_whole(config, "projection_dim", file) or 512,
        "quick_gelu": activation == "quick_gelu",
        "vision_cfg": {
            "image_size": seen["image_size"],
            "patch_size": seen["patch_size"],
            "head_width": seen["hidden_size"] // seen["num_attention_heads"],
            **_transformer(seen, vision),
        },
        "text_cfg": {
            "context_length": read["max_position_embeddings"],
            "vocab_size": read["vocab_size"],
            "heads": read["num_attention_heads"],
            **({} if is_last else {"pool_type": "eos", "eos_id": end}),
            **({} if read["vocab_size"] == CLIP_WORDS else {"hf_tokenizer_name": OF_THE_FOLDER}),
            **_transformer(read, text),
        },
    }


def _transformer(sizes: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {"width": sizes["hidden_size"], "layers": sizes["num_hidden_layers"]}
    own["mlp_ratio"] = sizes["intermediate_size"] / sizes["hidden_size"]
    if (eps := config.get("layer_norm_eps", 1e-5)) != 1e-5:
        own["norm_kwargs"] = {"eps": eps}
    if "tanh" in str(config.get("hidden_act")) or config.get("hidden_act") in ("gelu_new", "gelu_fast"):
        own["act_kwargs"] = {"approximate": "tanh"}
    return own


def _of_siglip(vision: Mapping[str, Any], text: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return open_clip's configuration of the SigLIP with the same sizes, because its image towers have fixed sizes."""
    seen, read = _sizes(vision, _SIGLIP_VISION, file), _sizes(text, _SIGLIP_TEXT, file)
    for candidate in sorted(open_clip_folder().glob("*SigLIP*.json"), key=lambda each: (len(each.name), each.name)):
        model = json.loads(candidate.read_text(encoding="utf-8"))
        tower, words = model["vision_cfg"], model["text_cfg"]
        patch = re.search(r"_patch(\d+)", tower.get("timm_model_name", ""))
        theirs = [model["embed_dim"], tower["image_size"], int(patch[1]) if patch else 0]
        theirs += [words.get(name) for name in ("width", "layers", "context_length", "vocab_size")]
        if theirs == [seen["hidden_size"], seen["image_size"], seen["patch_size"], *read.values()]:
            return _checked(model, candidate)
    sizes = ", ".join(f"{name} {seen[name]}" for name in ("hidden_size", "image_size", "patch_size"))
    raise ValueError(
        f"{file}: open_clip has no SigLIP of these sizes ({sizes}; {read['vocab_size']} words). Use a published one."
    )
