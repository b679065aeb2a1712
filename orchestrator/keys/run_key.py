"""Keys of runs: digests of exactly the inputs that determine a result.

    key of a run       = settings (except NON_IDENTITY_SETTINGS) + file digests + environment digests
    key of its first k tasks = settings read until then + their file digests + environment digests    (prefix_reuse.py)

    file digests   of every file and folder that a setting names, relative names included
    environment    stream        digest of its manifest, without skipped videos
                   frames        content addresses of all frames that the run can read
                   weights       of the backbone, with the description of its architecture
                   code ...      every source file of DIGESTED_PACKAGES, one digest per package; the method with
                                 everything that it imports; and the closure (foreign_code.py) of a method, base,
                                 protocol, stream, backbone, metric or optimizer of another package
                   torch, open_clip    their versions
                   device        cpu or cuda
                   capability    the vector instructions that torch uses (CPU only)
                   kernels       the variables that choose kernels, and the processor if results depend on it (CPU only)

A killed run resumes from its last commit only if all of these are equal, as on the same machine or an equivalent
machine. Otherwise it starts again under another key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_type_hints

import torch

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, place_of
from ctvr.methods.backbone.architectures import SHIPPED, UMT, VECTORS
from ctvr.methods.backbone.checkpoint import files_of
from ctvr.methods.backbone.entry_points import entry_point
from ctvr.methods.backbone.load import VERSION, describe_architecture, find_weight_settings, is_path
from ctvr.methods.backbone.own_architecture import weights_of
from ctvr.methods.plug_ins import installed
from ctvr.methods.user_paths import expand_path, list_files
from ctvr.orchestrator.digests import (
    ROOT,
    digest_file,
    digest_of,
    digest_sources,
    list_imported_sources,
    list_module_sources,
    list_sources,
)
from ctvr.orchestrator.interpreter import kernels
from ctvr.orchestrator.keys.foreign_code import Closure, digest_closure
from ctvr.orchestrator.streams.load import plain_name, plugins
from ctvr.orchestrator.streams.stream import PROTOCOLS, Stream

if TYPE_CHECKING:
    from ctvr.orchestrator.data.frames import FrameSource

PREPROCESSING = "preprocessing"  # name of the entry with the preprocessing settings of weights, as text
OF_PROTOCOL = "code of protocol "  # first words of the name of the digest of a plug-in protocol
# Digests of contents replace the names of the stream and of a weights file; the other settings do not change results
NON_IDENTITY_SETTINGS = (
    "stream",
    "backbone.weights",
    "backbone.sha256",
    "backbone.vocabulary",
    "upgrade.weights",
    "upgrade.sha256",
    "data.prefetch_threads",
    "data.skip_missing",
    "optim.activation_checkpointing",
    "evaluation.batch_size",
    "evaluation.query_chunk",
    "tracking.mirror",
    "tracking.keep_checkpoints",
    "tracking.pause_minutes",
)
# `streams` determines the order of tasks, items and category indices
DIGESTED_PACKAGES = (
    "orchestrator/keys",
    "orchestrator/settings",
    "orchestrator/learning",
    "orchestrator/data",
    "orchestrator/video",
    "orchestrator/streams",
    "methods/backbone",
    "methods/families",
    "methods/layers",
)


def frames_digest(stream: Stream, source: FrameSource, splits: Sequence[str]) -> str:
    """Return the SHA-256 of the content addresses of all frames that a run can read."""
    items = (item for index in range(len(stream.tasks)) for split in splits for item in stream.items(index, split))
    return digest_of([source.key(item) for item in items])


def weights_digest(backbone: str, weights: str, vocabulary: str = "") -> str:
    """Return the SHA-256 of a backbone's architecture, initial weights and vocabulary.

    The name of weights that are not in a file, such as an open_clip tag, replaces their digest.
    """
    weights = weights_of(backbone, weights)
    folder = SHIPPED.get(backbone)
    shipped = [digest_file(file) for file in sorted(folder.iterdir()) if file.is_file()] if folder else []
    pieces = content_of(vocabulary)
    described = {} if folder or backbone in (*UMT, VECTORS) else describe_architecture(backbone)
    return digest_of([shipped, _digest_of_weights(weights), *filter(None, (pieces, described))])


def describe_preprocessing(
    backbone: str, weights: str, chosen: Mapping[str, Any] | None = None, prefix: str = ""
) -> dict[str, str]:
    """Return the preprocessing settings of weights as text; {} if the backbone fixes them or loading it would fail.

    Args:
        backbone, weights: see `backbone.name` and `backbone.weights`.
        chosen: settings of a local file that the user gave (`BackboneConfig.chosen`).
        prefix: text before PREPROCESSING in the name of the entry.
    """
    try:
        found = find_weight_settings(backbone, weights, chosen)
    except (ValueError, RuntimeError):  # loading the backbone will report the reason
        return {}
    return {f"{prefix}{PREPROCESSING}": str(found)} if found else {}


def _digest_of_weights(weights: str) -> object:
    path = expand_path(weights)
    if os.path.isfile(path) and not path.name.endswith(".index.json"):
        return digest_file(path)
    if not is_path(weights) or not os.path.exists(path):
        return weights
    try:  # of a folder or an index, only the files that are loaded count
        return [digest_file(file) for file in files_of(path)]
    except (ValueError, FileNotFoundError):  # loading the backbone will report the reason
        return weights


def contents_of(config: Any, prefix: str) -> dict[str, str]:
    """Map every string setting of a method that names a file or folder to the digest of the contents."""
    found = {}
    for name, hint in get_type_hints(type(config)).items():
        if hint is str and name != "base" and (digest := content_of(getattr(config, name))):
            found[f"{prefix}.{name}"] = digest
    return found


def content_of(text: str) -> str:
    """Return the digest of a file, or of a folder's relative paths and contents; "" if `text` names neither."""
    path = expand_path(text)
    if text and os.path.isdir(path):  # `Path.is_dir` raises for a text that is too long for a name
        return digest_of([[file.relative_to(path).as_posix(), digest_file(file)] for file in list_files(path)])
    return digest_file(path) if text and os.path.isfile(path) else ""


def environment(device: str) -> dict[str, str]:
    """Return the versions, kernels and hardware that affect floating-point rounding on `device` (cpu or cuda)."""
    versions = {"torch": torch.__version__, "open_clip": VERSION, "device": device}
    if device != "cpu":
        return versions
    return {**versions, "capability": torch.backends.cpu.get_cpu_capability(), "kernels": kernels()}


def protocol_digest(name: str) -> dict[str, str]:
    """Return the digest of a plug-in protocol's code, by name; {} for a built-in protocol."""
    point = None if name in PROTOCOLS else installed("protocols").get(name)  # which reads the metadata of all packages
    return {OF_PROTOCOL + name: digest_closure(point.module)} if point is not None else {}


def stream_digest(name: str) -> dict[str, str]:
    """Return the digest of a plug-in stream's code, by name; {} for any other stream."""
    point = plugins().get(plain_name(name))
    return {f"code of stream {point.name}": digest_closure(point.module)} if point is not None else {}


def backbone_digest(*names: str) -> dict[str, str]:
    """Return, by name, the digest of the code of each backbone that is an entry point; {} for all others."""
    found = {name: entry_point(name) for name in names}
    return {
        f"code of backbone {name}": digest_of([point.value, digest_closure(point.module)])
        for name, point in found.items()
        if point
    }


def code_digests(method: str, base: str | None = None) -> dict[str, str]:
    """Return, by name, one digest for each of DIGESTED_PACKAGES and one for the method (and its base) with its imports.

    The digest of a method of another package is separate (foreign_code.py).
    """
    rooms = {room: list_sources(room, ROOT) for room in DIGESTED_PACKAGES}
    shared = [file for room, files in rooms.items() if room.startswith("methods/") for file in files]
    classes = [CONFIGURATIONS.get(name, (name, ""))[0] for name in (method, base) if name]
    places = {name: place_of(name) for name in classes}
    modules = {name: place.partition(":")[0] for name, place in places.items()}
    foreign = {name: module for name, module in modules.items() if places[name] not in EVERY_METHOD.values()}
    named = {*modules.values(), *Closure(foreign.values()).ours}
    parts = {name.split(".")[2] for name in named if name.startswith("ctvr.methods.")}  # modules or subpackages
    own = [file for part in parts for file in list_module_sources(part, "methods", ROOT)]
    of_method = {*list_imported_sources([*own, *shared], "methods", ROOT)} - {*shared}
    return {
        **{f"code of {name}": digest_closure(module) for name, module in foreign.items()},
        **{f"code of {room}": digest_sources(files, ROOT) for room, files in rooms.items()},
        "code of the method": digest_sources(of_method, ROOT),
    }
