"""Options of models on the Hugging Face hub, and their loading with all of their weights."""

from __future__ import annotations

import argparse
from typing import Any

import torch


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a model on the Hugging Face hub."""
    parser.add_argument("--model", required=True, metavar="NAME", help="name on the Hugging Face hub, or a folder")
    parser.add_argument(
        "--revision", metavar="COMMIT", help="branch, tag or commit on the hub (default: the newest commit)"
    )


def load_whole(kind: Any, options: argparse.Namespace, dtype: torch.dtype | str) -> Any:
    """Load a model by a class of transformers.

    Raises:
        ValueError: if weights of the model are missing in its files, which transformers would draw at random.
    """
    model, report = kind.from_pretrained(
        options.model, revision=options.revision, dtype=dtype, output_loading_info=True
    )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"its files lack {len(missing)} weights of {type(model).__name__}, the first {missing[0]}")
    return model


def find_commit(model: Any, asked: str | None) -> str:
    """Return the commit on the hub from which a model was loaded; for a folder, the requested revision."""
    configs = (getattr(module, "config", None) for module in model.modules())
    commits = (getattr(config, "_commit_hash", None) for config in configs)
    return next(filter(None, commits), None) or asked or "a local folder"
