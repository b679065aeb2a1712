"""The state of a search that Ray Tune keeps beside its trials, read before anything is started on it."""

from __future__ import annotations

import pickle

from pyarrow import fs

from orchestrator.errors import ConfigError
from orchestrator.on_ray.plan import TrialPlan, below


def check_state(plan: TrialPlan) -> None:
    """Refuse a search that another version began: Tune pickles its searcher and scheduler by the names of their files.

    A search that has no state yet begins anew and is not refused.

    Raises:
        ConfigError: if this version cannot read the state.
    """
    file = below(below(plan.storage, "tune"), "tuner.pkl")
    system, path = fs.FileSystem.from_uri(file) if "://" in file else (fs.LocalFileSystem(), file)
    if system.get_file_info(path).type != fs.FileType.File:
        return
    with system.open_input_stream(path) as stream:
        state = stream.readall()
    try:
        pickle.loads(state)
    except (ImportError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        raise ConfigError(
            f"sweep {plan.sweep}: what Ray Tune kept of it cannot be read by this version ({error}). "
            "Start a new sweep, or go on with the version that began it."
        ) from error
