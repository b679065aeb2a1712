"""Settings that belong to weights: normalization and resizing of pixels, activation, and length of captions.

The name of an architecture does not determine them: the tags of ViT-B-32 use two activations, and the tags of ViT-H-14
two resize modes. For a tag, open_clip's configuration contains the settings; for a file, the JSON next to the file.
Without JSON, a setting has the value on which all tags of the architecture agree. If the tags disagree, the user must
give the value.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ctvr.methods.backbone.json_fields import MAX_SIZE, get_object, get_typed, get_whole, read_object
from ctvr.methods.backbone.own_architecture import is_own, own_preprocessing, read_architecture

MOST_TOKENS = MAX_SIZE  # largest accepted number of tokens of a caption
ACTIVATIONS = ("gelu", "quick_gelu")
RESIZE_MODES = ("shortest", "squash", "longest")
INTERPOLATIONS = ("bicubic", "bilinear")
_RESAMPLE = {2: "bilinear", 3: "bicubic"}  # PIL's codes, as transformers writes them
_TANH = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}


@dataclass(frozen=True)
class WeightSettings:
    """Settings that differ between weights of one architecture.

    Attributes:
        activation: activation function of the blocks, `gelu` or `quick_gelu`.
        mean: (3,) means of the color channels, which are subtracted from pixels in [0, 1].
        std: (3,) standard deviations by which the color channels are divided.
        resize_mode: `shortest` (crop the center), `squash` (to a square) or `longest` (pad with black).
        interpolation: `bicubic` or `bilinear`.
        context_length: maximum number of tokens of a caption.
    """

    activation: str = "gelu"
    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
    resize_mode: str = "shortest"
    interpolation: str = "bicubic"
    context_length: int = 77

    def __str__(self) -> str:
        mean, std = (" ".join(f"{x:g}" for x in values) for values in (self.mean, self.std))
        return (
            f"mean {mean}, std {std}, {self.resize_mode}, {self.interpolation}, {self.activation}, "
            f"{self.context_length} tokens"
        )


def weight_settings(
    name: str,
    weights: str,
    file: Path | None = None,
    chosen: Mapping[str, Any] | None = None,
    group: str = "backbone",
) -> WeightSettings:
    """Return the settings that belong to weights of an open_clip architecture, without a download.

    Args:
        name: an architecture of open_clip, or the path of the user's own.
        weights: a tag, or `random` for open_clip's defaults.
        file: file or folder of local weights; None for a tag or `random`.
        chosen: the user's settings for local weights, by name.
        group: group of settings to name in messages, `backbone` or `upgrade`.

    Raises:
        ValueError: one line, if a setting is not determined, a value is unknown, or two sources contradict each other.
    """
    import open_clip  # slow import (seconds), deferred until a backbone is described

    described: dict[str, Any] = read_architecture(name) if is_own(name) else open_clip.get_model_config(name) or {}
    if not described:
        raise ValueError(f"{name} is not an architecture of open_clip")
    tags = [] if is_own(name) else open_clip.list_pretrained_tags_by_model(name)
    if file is None:
        if chosen:
            raise ValueError(f"{next(iter(chosen))}: applies to a local file only (got weights={weights!r}). Omit it.")
        found = _read_tag(name, weights if weights in tags else "", described)
        return replace(found, **_read_own(name, described))
    stated = _read_own(name, described) | _read_local_json(file, described)
    for field, value in (chosen or {}).items():
        if stated.get(field, value) != value:
            raise ValueError(f"{field}: the JSON next to {file} states {_format(stated[field])}. Omit the setting.")
    options = [_read_tag(name, tag, described) for tag in tags] or [_read_tag(name, "", described)]
    found = _complete(name, options, stated, dict(chosen or {}), group)
    if found.activation == "gelu" and described.get("quick_gelu"):
        if is_own(name):
            raise ValueError(f"{file}: activation is gelu, but quick_gelu is true in {name}. Correct it there.")
        plain = name.removesuffix("-quickgelu")
        setting = "backbone.name" if group == "backbone" else f"{group}.backbone"
        raise ValueError(
            f"activation: the weights in {file} were trained with gelu, but {name} has quick_gelu. Use "
            f"{setting}={plain}."
        )
    return found


def saved_settings(saved: Any) -> WeightSettings:
    """Convert the parsed JSON of a saved `asdict(WeightSettings)` to `WeightSettings`.

    Raises:
        ValueError: one line, if a value is missing or unknown.
    """
    names = [each.name for each in fields(WeightSettings)]
    if not isinstance(saved, Mapping) or any(not saved.get(name) for name in names):
        raise ValueError(f"must state {', '.join(names)} (got {saved!r}). Save the model again.")
    if saved["activation"] not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)} (got {saved['activation']!r}). Correct it."
        )
    if type(length := saved["context_length"]) is not int or not 0 < length <= MOST_TOKENS:
        raise ValueError(f"context_length must be 1 to {MOST_TOKENS} (got {length!r}). Correct it.")
    return WeightSettings(saved["activation"], context_length=length, **_preprocessing(saved, "model"))


def _complete(
    name: str, options: list[WeightSettings], stated: Mapping[str, Any], chosen: Mapping[str, Any], group: str
) -> WeightSettings:
    """Add to `stated` and `chosen` each missing setting, with the value on which all remaining `options` agree."""
    found: dict[str, Any] = dict(stated)
    for field in [each.name for each in fields(WeightSettings)]:
        values = list(dict.fromkeys(getattr(option, field) for option in options))
        if field in chosen and field not in stated:
            if chosen[field] not in values:
                raise ValueError(
                    f"{field}: weights of {name} have {' or '.join(map(_format, values))} (got "
                    f"{_format(chosen[field])}). Use one of them, or put an open_clip_config.json next to the file."
                )
            found[field] = chosen[field]
        elif field not in found and len(values) > 1:
            raise ValueError(
                f"{field}: weights of {name} have {' or '.join(map(_format, values))}, and the JSON next to the file "
                f"does not state it. Add {' or '.join(f'{group}.{field}={_format(value)}' for value in values)}, or "
                "put an open_clip_config.json next to it."
            )
        found.setdefault(field, values[0])
        options = [option for option in options if getattr(option, field) == found[field]] or options
    return WeightSettings(**found)


def _format(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _read_tag(name: str, tag: str, described: Mapping[str, Any]) -> WeightSettings:
    """Return the settings that open_clip states for a tag, or open_clip's defaults for an empty tag."""
    from open_clip.pretrained import get_pretrained_cfg

    config = get_pretrained_cfg(name, tag) if tag else {}
    is_quick = bool(config.get("quick_gelu") or described.get("quick_gelu"))
    return WeightSettings(
        **asdict(WeightSettings())
        | _preprocessing(config, f"{name} {tag}")
        | {
            "activation": "quick_gelu" if is_quick else "gelu",
            "context_length": described.get("text_cfg", {}).get("context_length", 77),
        }
    )


def _read_own(name: str, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in the user's file or folder of an architecture; {} if `name` is not a path."""
    if not is_own(name):
        return {}
    preprocessing, place = own_preprocessing(name)
    return _read_local_json(place, described) if place.is_dir() else _preprocessing(preprocessing, str(place))


def _read_local_json(file: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in JSON files next to the weights; those in open_clip_config.json take precedence."""
    folder = file if file.is_dir() else file.parent
    found = _read_transformers_model(folder / "config.json", described)
    found |= _read_preprocessor(folder / "preprocessor_config.json", folder / "open_clip_config.json")
    own = read_object(source := folder / "open_clip_config.json")
    found |= _preprocessing(get_object(own, "preprocess_cfg", source), str(source))
    if own.get("model_cfg") is not None:
        model = get_object(own, "model_cfg", source)
        found["activation"] = "quick_gelu" if get_typed(model, "quick_gelu", bool, "true or false", source) else "gelu"
        if length := get_whole(get_object(model, "text_cfg", source), "context_length", source):
            found["context_length"] = length
    return found


def _preprocessing(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return those of mean, std, resize mode and interpolation that a configuration in open_clip's format contains."""
    found: dict[str, Any] = {}
    for field in ("mean", "std"):
        if (value := config.get(field)) is not None:
            found[field] = _three(value, f"{source}: {field}", is_positive=field == "std")
    for field, known in (("resize_mode", RESIZE_MODES), ("interpolation", INTERPOLATIONS)):
        if (value := config.get(field)) is not None:
            if value not in known:
                got = reprlib.repr(value)
                raise ValueError(f"{source}: {field} must be one of {', '.join(known)} (got {got}). Correct it.")
            found[field] = value
    return found


def _three(value: Any, source: str, is_positive: bool) -> tuple[float, ...]:
    values = value if isinstance(value, (list, tuple)) else [value] * 3
    is_right = len(values) == 3 and all(type(x) in (int, float) and math.isfinite(x) for x in values)
    if not is_right or (is_positive and min(values) <= 0):
        what = "three positive numbers" if is_positive else "three numbers"
        raise ValueError(f"{source} must be {what} (got {reprlib.repr(value)}). Correct it.")
    return tuple(float(x) for x in values)


def _read_preprocessor(file: Path, other: Path) -> dict[str, Any]:
    """Return the settings in a preprocessor_config.json of transformers.

    The resize mode is omitted if open_clip's file `other` exists.
    """
    config = read_object(file)
    found = {"mean": config.get("image_mean"), "std": config.get("image_std")}
    if config.get("do_normalize") is False:
        found = {"mean": 0, "std": 1}
    plain = _preprocessing(found, str(file))
    if (number := get_typed(config, "resample", int, "an integer, PIL's code of a filter", file)) is not None:
        plain |= _preprocessing({"interpolation": _RESAMPLE.get(number, number)}, f"{file}: resample")
    edge, height = _lengths(config, "size", file)
    if other.is_file() or not (edge or height):
        return plain
    before, (_, crop) = edge or height, _lengths(config, "crop_size", file)
    if config.get("do_center_crop") and crop not in (None, before):
        raise ValueError(
            f"{file}: resizes to {before} pixels and crops {crop}, but ctvr resizes and crops to one size. Put an "
            f"{other.name} of open_clip next to it."
        )
    return plain | {"resize_mode": "shortest" if edge else "squash"}


def _lengths(config: Mapping[str, Any], name: str, file: Path) -> tuple[int | None, int | None]:
    """Return the shortest edge and the height in pixels that `config[name]` contains; each is None if it is absent.

    The value is an object with these fields, or a single integer that stands for both.
    """
    if isinstance(config.get(name), Mapping):
        return get_whole(config[name], "shortest_edge", file), get_whole(config[name], "height", file)
    edge = get_whole(config, name, file)
    return edge, edge


def _read_transformers_model(file: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the activation and the context length in a config.json of a CLIP or SigLIP of transformers."""
    config = read_object(file)
    text, vision = (
        get_object(config, f"{each}_config", file) or get_object(config, f"{each}_config_dict", file)
        for each in ("text", "vision")
    )
    if not (text or vision):
        return {}
    kind = get_typed(config, "model_type", str, "a text", file) or ""
    default = {"clip": "quick_gelu", "siglip": "gelu_pytorch_tanh", "siglip2": "gelu_pytorch_tanh"}.get(kind)
    stated = (get_typed(tower, "hidden_act", str, "a text", file) or default for tower in (text, vision))
    acts = {act for act in stated if act}
    has_tanh = "tanh" in json.dumps(described) or "timm_model_name" in json.dumps(described)
    known = {"gelu", "quick_gelu"} | (_TANH if has_tanh else set())
    if len(acts) > 1 or acts - known:
        raise ValueError(
            f"{file}: hidden_act is {', '.join(sorted(acts))}, which this architecture does not support. "
            "Use the architecture of these weights."
        )
    found: dict[str, Any] = {"activation": "quick_gelu" if "quick_gelu" in acts else "gelu"} if acts else {}
    length = get_whole(text, "max_position_embeddings", file)
    return found | ({"context_length": length} if length and kind in {"clip", "siglip", "siglip2"} else {})
