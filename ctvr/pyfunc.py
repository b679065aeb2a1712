"""Loader of a saved model. `mlflow.pyfunc.load_model` imports this module, because the file MLmodel names it.

MLflow calls `predict` with a table that has a column `text`. The folder of the model contains safetensors and JSON, so
nothing is unpickled. The signature of the calls is in `orchestrator/tracking/mlflow_ui.py`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctvr.orchestrator.retrieval.model import Model

COLUMNS = ("text", "rank", "score", "video", "path")
DEFAULTS = {"k": 10, "folder": ""}  # equal to the defaults of the signature


@dataclass
class Retriever:
    """A trained model with the method `predict` that MLflow calls."""

    model: Model

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Return one row per text and retrieved video: text, rank (from 1), score, video, path.

        Args:
            model_input: data frame with a column `text`.
            params: `k`, the number of videos per text; `folder`, a folder of videos to search instead of the gallery.

        Raises:
            ConfigError: for an empty text, k < 1, or a folder without videos.
        """
        given = {**DEFAULTS, **(params or {})}
        texts = [str(text) for text in model_input["text"]]
        found = self.model.search(texts, int(given["k"]), str(given["folder"]) or None)
        rows = [(text, hit.rank, hit.score, hit.video, hit.path) for text, hits in zip(texts, found) for hit in hits]
        return importlib.import_module("pandas").DataFrame(rows, columns=list(COLUMNS))


def _load_pyfunc(path: str) -> Retriever:
    """Load the model in a folder, with its stream from the runs folder $CTVR_RUNS. MLflow requires this name."""
    from ctvr.api import load

    return Retriever(load(path, runs=os.environ.get("CTVR_RUNS") or "runs"))
