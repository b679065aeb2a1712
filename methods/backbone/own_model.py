"""Builds the open_clip model and the tokenizer of an architecture in the user's files (own_architecture.py).

The file determines the tokenizer. Without `text_cfg.hf_tokenizer_name` it is CLIP's; otherwise it is the one in the
folder or, if there is none, the Hub's tokenizer of that name. open_clip's registry of names is not changed, so every
process builds the same model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.hub import fetch, offline
from ctvr.methods.backbone.own_architecture import OF_THE_FOLDER, has_tokenizer, own_folder, read_architecture
from ctvr.methods.backbone.weight_settings import WeightSettings
from ctvr.methods.backbone.weights import reason_of
from ctvr.methods.settings import SettingError

Tokenizer = Callable[[list[str]], Tensor]
_COPY = "Run this command once on a machine with a network, and copy $HF_HOME (or ~/.cache/huggingface)."


def build_own(name: str, seed: int, own: WeightSettings) -> tuple[nn.Module, Tokenizer]:
    """Build a model with random weights from `seed`, and its tokenizer.

    Args:
        name: path of the architecture.
        seed: seed of the weights.
        own: provides activation and context length.

    Raises:
        ValueError: one line, if open_clip cannot build the model, or its vocabulary is smaller than the tokenizer's.
    """
    from open_clip import CLIP, CustomTextCLIP  # slow import (seconds), deferred until a tower is built

    described = read_architecture(name)
    config = copy.deepcopy(described)
    kind = CustomTextCLIP if config.pop("custom_text", False) else CLIP
    config["quick_gelu"] = own.activation == "quick_gelu"
    config["text_cfg"]["context_length"] = own.context_length
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            source: nn.Module = kind(**config)
        except Exception as error:  # of any kind, depending on the value in the file
            raise ValueError(f"{name}: open_clip cannot build it ({reason_of(error)}). Correct the file.") from error
    tokenizer = own_tokenizer(name, described, own.context_length)
    words = described["text_cfg"].get("vocab_size", 49408)
    if (needed := _words_of(tokenizer)) > words:
        raise ValueError(
            f"{name}: vocab_size is {words}, but the tokenizer has {needed} words. Put the files of a tokenizer of "
            "transformers into a folder with the architecture, or set hf_tokenizer_name."
        )
    return source, tokenizer


def own_tokenizer(name: str, described: Mapping[str, Any], length: int) -> Tokenizer:
    """Return the tokenizer of an architecture (see the module's docstring), for captions of `length` tokens.

    Raises:
        ValueError: if the tokenizer needs transformers, which is not installed, or open_clip cannot build it.
        SettingError: if the tokenizer is not in the cache of the Hub and cannot be downloaded.
    """
    from open_clip.tokenizer import HFTokenizer, SimpleTokenizer

    text = described["text_cfg"]
    options = dict(text.get("tokenizer_kwargs") or {})
    hub = text.get("hf_tokenizer_name")
    if not hub:
        if "bpe_path" in options:
            options["bpe_path"] = str(own_folder(name) / options["bpe_path"])
        try:
            plain: Tokenizer = SimpleTokenizer(context_length=length, **options)
        except Exception as error:  # of any kind: of gzip, zlib and open_clip
            place = options.get("bpe_path", name)
            raise ValueError(
                f"{place}: open_clip cannot build the tokenizer ({reason_of(error)}). Correct it."
            ) from error
        return plain
    if hub == OF_THE_FOLDER and not has_tokenizer(name):
        raise ValueError(
            f"{name}: its vocabulary is not CLIP's, and it is not a folder with a tokenizer. Use the path of a folder "
            "with config.json and tokenizer.json."
        )
    options |= {"context_length": length, "tokenizer_mode": text.get("tokenizer_mode"), "trust_remote_code": False}
    try:
        if has_tokenizer(name):
            with offline():
                found: Tokenizer = HFTokenizer(str(own_folder(name)), **options)
        else:
            found = fetch(partial(HFTokenizer, hub, **options), f"the tokenizer of {name}", _COPY)
    except ImportError as error:
        raise ValueError(f"the tokenizer of {name} needs the package transformers: pip install transformers") from error
    except SettingError:
        raise
    except Exception as error:  # of any kind: the package tokenizers raises plain Exception
        raise ValueError(f"{name}: open_clip cannot build the tokenizer ({reason_of(error)}). Correct it.") from error
    return found


def is_of_transformers(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer is from transformers; its ids of padding and end then differ from CLIP's."""
    return hasattr(tokenizer, "tokenizer")


def _words_of(tokenizer: Any) -> int:
    return len(tokenizer.tokenizer) if is_of_transformers(tokenizer) else int(tokenizer.vocab_size)
