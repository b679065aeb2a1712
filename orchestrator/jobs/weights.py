"""Download of weights from the Hub to a folder that another machine can read (`ctvr cache weights`)."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from ctvr.methods.backbone.architectures import SHIPPED, UMT, VECTORS
from ctvr.methods.backbone.checkpoint import OF_A_FOLDER
from ctvr.methods.backbone.hub import fetch_weights
from ctvr.methods.backbone.load import describe_architecture, tags_of
from ctvr.methods.backbone.weight_settings import weight_settings
from ctvr.methods.settings import SettingError
from ctvr.orchestrator.config import setting_error
from ctvr.orchestrator.digests import digest_file
from ctvr.orchestrator.output_dir import new_folder, require_new


def carry_weights(name: str, tag: str, folder: Path | None = None) -> str:
    """Download the weights of an open_clip tag, and write them to a new folder with the settings that belong to them.

    Args:
        name: architecture of open_clip.
        tag: open_clip's name of pretrained weights of the architecture.
        folder: the new folder; if None, `NAME-TAG` in the current folder.

    Raises:
        ConfigError: for an unknown name or tag, a folder that is not empty, or weights that cannot be downloaded.
    """
    try:
        if name in (*SHIPPED, *UMT, VECTORS):
            raise SettingError(f"<name>={name} has no weights on the Hub", "Use an architecture of open_clip.")
        if tag not in (known := tags_of(name)):
            remedy = f"Use one of: {', '.join(known)}." if known else "Use another architecture."
            raise SettingError(f"<weights>={tag} is not a tag of {name}", remedy)
        folder = folder or Path(f"{name}-{tag}")
        require_new(folder)
        file = fetch_weights(name, tag, "Run this command on a machine with a network.")
    except SettingError as error:
        raise setting_error(error, "backbone") from error
    stated = weight_settings(name, tag)
    kept = {
        "model_cfg": {
            "quick_gelu": stated.activation == "quick_gelu",
            "text_cfg": {"context_length": stated.context_length},
        },
        "preprocess_cfg": {
            "mean": stated.mean,
            "std": stated.std,
            "resize_mode": stated.resize_mode,
            "interpolation": stated.interpolation,
        },
    }
    suffix = ".safetensors" if file.suffix == ".safetensors" else ".bin"
    target = next(each for each in OF_A_FOLDER if each.startswith("open_clip") and each.endswith(suffix))
    with new_folder(folder) as new:
        shutil.copyfile(file, new / target)
        (new / "open_clip_config.json").write_text(json.dumps(kept), encoding="utf-8")
    size = (folder / target).stat().st_size
    digest = "" if suffix == ".safetensors" else f" backbone.sha256={digest_file(folder / target)}"
    tokenizer = ""
    if "hf_tokenizer_name" in describe_architecture(name).get("text_cfg", {}):
        tokenizer = "\nfor the tokenizer, also copy the cache of the Hub ($HF_HOME, or ~/.cache/huggingface)"
    return (
        f"written: {folder} ({target}, {size / 1e6:.0f} MB; open_clip_config.json)\n"
        f"use it: backbone.name={name} backbone.weights={shlex.quote(str(folder.resolve()))}{digest}{tokenizer}"
    )
