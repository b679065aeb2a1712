"""Numbers of whole tiny models, recorded at a commit whose code equals the authors' outputs on the authors' weights.

The authors' whole models are in the reference files, which a public clone does not have. A change of any equation moves
these numbers in every clone, too. They are not the authors' outputs: the weights here are seeded noise.

    python -m tests.methods.recorded      # writes fixtures/recorded.json again, after an intended change
"""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ctvr.methods import CONFIGURATIONS, METHODS
from ctvr.orchestrator.method_checks.subject import Subject, features, learn, store_gallery
from ctvr.orchestrator.settings.presets import presets_of

FILE = Path(__file__).parent / "fixtures" / "recorded.json"
RELEASES = ("released", "original")  # presets of the authors' code
# At their rates rounding grows within three steps
STEEP = {f"{name}:original" for name in ("er_ring", "der", "co2l", "lump")}
Numbers = dict[str, list[float]]


def cases() -> list[str]:
    """Return methods and rows with their defaults, and with the authors' presets that the tiny backbone supports."""
    names = [*METHODS, *CONFIGURATIONS]
    of_presets = [f"{name}:{preset}" for name in names for preset in RELEASES if preset in presets_of(name)]
    return [*names, *(case for case in of_presets if case not in STEEP)]


def numbers(case: str) -> Numbers | None:
    """Return losses of three steps over two tasks, and the features and scores after them; None if it does not fit."""
    name, _, preset = case.partition(":")
    try:
        subject = Subject.of(name, presets=[preset] if preset else [])
        method = subject.make()
    except ValueError:  # of another resolution, or of more frames
        return None
    with torch.no_grad():
        for key, parameter in method.named_parameters():  # what begins as nothing would hide an equation
            parameter += 0.03 * torch.from_numpy(noise(key, parameter.shape)).float()
    found: Numbers = {}
    for index, steps in enumerate((2, 1)):
        found[f"losses/{index}"] = learn(method, index, steps)
        store_gallery(method, index)
    videos, texts = features(method, 1)
    with torch.no_grad():
        scores = method.score(texts, videos)
        final = method.normalize_scores(scores), method.normalize_scores_v2t(scores)
    for what, tensor in (("videos", videos), ("texts", texts), ("scores", scores), ("final", torch.stack(final))):
        found[what] = summary(what, tensor)
    return {what: [float(f"{value:.7g}") for value in values] for what, values in found.items()}


def summary(what: str, tensor: Tensor) -> list[float]:
    """Return the mean size of a tensor's numbers, and two sums over all of them weighted by noise."""
    plain = tensor.double().flatten().numpy()
    return [float(abs(plain).mean()), *(noise(what, (2, plain.size)) @ plain / np.sqrt(plain.size))]


def noise(name: str, shape: Sequence[int]) -> np.ndarray:
    """Return normal numbers that depend on a name."""
    return np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(shape))


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in the tests
    made = {case: numbers(case) for case in cases()}
    lines = [f" {json.dumps(case)}: {json.dumps(values)}" for case, values in made.items() if values]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
