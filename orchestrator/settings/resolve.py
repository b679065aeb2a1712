"""Resolution of settings into an `Experiment`.

Settings come from the command line, presets and streams as flat `group.name` pairs; `resolve` fills in the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from ctvr.methods.backbone.architectures import VECTORS
from ctvr.methods.backbone.load import brings_weights
from ctvr.methods.base import Capabilities, Method
from ctvr.methods.settings import SettingError
from ctvr.orchestrator.config import Settings, build, flatten, select_prefix, setting_error, unknown_setting
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.errors import ConfigError, UntrustedCode
from ctvr.orchestrator.setting_groups import known_settings, setting_names, settings_called
from ctvr.orchestrator.settings.experiment import GROUPS, Experiment, RunConfig
from ctvr.orchestrator.settings.presets import configured, get_method, preset_settings, with_base_method, with_recipe
from ctvr.orchestrator.streams.stream import Stream

FEATURES = "imported features"  # source of the settings in `Method.ON_FEATURES`
BACKBONE = "the backbone"  # source of `backbone.weights` if the chosen backbone comes with its own


def stored_capabilities(settings: Settings) -> Capabilities:
    """Return the capabilities of a stored run's method; defaults replace settings that this version does not accept.

    Raises:
        ConfigError: for a method that cannot be loaded on this machine.
    """
    cls = get_method(str(settings["method"]))
    given = known_settings(cls.Config, select_prefix(settings, "method"))
    try:
        return cls.capabilities(build(cls.Config, given, "method"))
    except ConfigError:
        return cls.capabilities(build(cls.Config, {}, "method"))


@contextmanager
def named_in(place: str) -> Iterator[None]:
    """Add `place`, the file or record that names the class, to an UntrustedCode error of the `with` block."""
    try:
        yield
    except UntrustedCode as error:
        inner = f": {error.place}" if error.place else ""
        raise UntrustedCode(error.name, f"{place}{inner}") from error


def check_domain(method: str, stream: Stream) -> None:
    """Check that a method supports the domain of a stream.

    Raises:
        ConfigError: if it does not; the message names both and their domains.
    """
    if (domain := get_method(method).domain) != stream.domain:
        remedy = {"videos": "clip4clip", "images": "image_finetune", "questions": "umt_qa"}[stream.domain]
        raise ConfigError(
            f"{method} is for {domain}, but stream {stream.name} has {stream.domain}",
            "method",
            remedy=f"Choose a method for {stream.domain}, such as {remedy}.",
        )


def resolve(
    overrides: Mapping[str, Any], recommended: Mapping[str, Any] | None = None, presets: Sequence[str] = ()
) -> Experiment:
    """Check a user's configuration, fill in defaults and return the complete experiment of a run.

    Later sources override earlier ones: defaults, `Method.OPTIMIZER`, the stream's recommended settings, on imported
    features `Method.ON_FEATURES`, the weights that come with the backbone, the presets (first the recipe, then its
    changes), the overrides. The recipe that the stream recommends must be in `presets`; `with_recipe` adds it.

    Args:
        overrides: flat dotted settings as the user gave them; must contain `method` and `stream`.
        recommended: `Stream.settings`.
        presets: names from the method's PRESETS.

    Raises:
        ConfigError: for an unknown method, preset or setting, or a value outside its range.
    """
    if "method" not in overrides:
        raise ConfigError("no method was given", "method", remedy="Add --method NAME; `ctvr methods` lists them.")
    return _resolve_layers(overrides, recommended or {}, presets)


def resolve_method(
    method: str, recommended: Mapping[str, Any], presets: Sequence[str] = (), given: Mapping[str, Any] | None = None
) -> Experiment:
    """Resolve a method with its recipe and presets, without a stream.

    Args:
        method: name of a method or a configuration.
        recommended: settings that the stream recommends.
        presets: names of presets.
        given: settings that override all others, such as a table row's settings, or a search space's fixed settings.
    """
    overrides = {**(given or {}), "method": method, "stream": ""}
    return _resolve_layers(overrides, recommended, with_recipe(method, presets, recommended))


def _resolve_layers(overrides: Mapping[str, Any], recommended: Mapping[str, Any], presets: Sequence[str]) -> Experiment:
    """Order the settings of all sources, and build the experiment."""
    name, presets = configured(str(overrides["method"]), presets)
    overrides = {**with_base_method(overrides), "method": name}
    cls = get_method(name)
    of_presets = preset_settings(name, presets, overrides, recommended)
    chosen = {**of_presets, **overrides}
    known = {**recommended, **chosen}
    if cls.wraps and "method.base" in recommended and "method.base" not in chosen:
        with named_in(f"stream {overrides.get('stream')}"):
            get_method(str(recommended["method.base"]))
    layers: dict[str, Settings] = {
        "the method": _optimizer_defaults(cls, known),
        "the stream": dict(recommended),
        FEATURES: defaults_on_features(cls, known) if known.get("backbone.name") == VECTORS else {},
        BACKBONE: _weights_of_backbone(chosen),
        f"preset {','.join(presets)}": of_presets,
        "you": overrides,
    }
    return build_experiment(layers, presets)


def _weights_of_backbone(chosen: Mapping[str, Any]) -> Settings:
    """Return `backbone.weights` for a chosen folder or entry point; the stream's weights are for another backbone."""
    name = str(chosen.get("backbone.name", ""))
    return {"backbone.weights": "shipped"} if name and brings_weights(name) else {}


def with_values(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Return the experiment that `resolve` would return if the user also gave `values`; raises the errors of `resolve`.

    Only the groups of these settings, and the groups that depend on them, are built and checked.
    """
    layers = {**experiment.layers, "you": {**experiment.layers["you"], **values}}
    if not {"method", "method.base"}.isdisjoint(values):  # another method has other presets
        return _resolve_layers(layers["you"], layers["the stream"], experiment.presets)
    changed = {name.partition(".")[0] if "." in name else "run" for name in values}
    changed |= {"method", "base"} if "data" in changed else {"base"} if "method" in changed else set()
    return build_experiment(layers, experiment.presets, {k: v for k, v in vars(experiment).items() if k not in changed})


def build_experiment(
    layers: dict[str, Settings], presets: Sequence[str] = (), groups: Mapping[str, Any] | None = None
) -> Experiment:
    """Build the groups of settings, and check them against each other.

    Args:
        layers: source -> its settings, see `Experiment`; the last layer contains `method` and `stream`.
        groups: name -> a group that is already built and checked.
    """
    given = {name: value for settings in layers.values() for name, value in settings.items() if name != "preset"}
    cls, built = get_method(str(given["method"])), groups or {}
    _refuse_unknown_names(cls, given)
    run = built.get("run") or build(RunConfig, {name: value for name, value in given.items() if "." not in name})
    made: dict[str, Any] = {
        group: built.get(group) or build(config, select_prefix(given, group), group) for group, config in GROUPS.items()
    }
    made["method"] = built.get("method") or _build_method(cls, given, made["data"], "method")
    made["base"] = built.get("base") or _build_base(cls, made["method"], given, made["data"])
    if made["data"].batch_size % run.workers:
        raise ConfigError(
            f"{made['data'].batch_size} pairs cannot be split evenly over workers={run.workers}",
            "data.batch_size",
            remedy="Use a multiple of workers.",
        )
    settings = flatten(run)
    for group, value in made.items():
        settings |= flatten(value, group) if value is not None else {}
    return Experiment(run, **made, settings=settings, presets=tuple(presets), layers=layers)


def _optimizer_defaults(cls: type[Method], settings: Settings) -> Settings:
    """Return the defaults of `optim.*` (`OPTIMIZER`) of a retriever, or of the retriever that a strategy wraps."""
    retriever = _find_base(cls, settings) if cls.wraps else cls
    return dict(retriever.OPTIMIZER) if retriever else {}


def defaults_on_features(cls: type[Method], settings: Settings) -> Settings:
    """Return the defaults that a method, and the retriever that it wraps, declare for imported features.

    Args:
        settings: may name the retriever as `method.base`.
    """
    base = _find_base(cls, settings) if cls.wraps else None
    of_base = (
        {f"base.{name}": value for name, value in select_prefix(base.ON_FEATURES, "method").items()} if base else {}
    )
    return {**of_base, **cls.ON_FEATURES}


def _find_base(cls: type[Method], settings: Settings) -> type[Method] | None:
    try:
        return get_method(str(settings.get("method.base", cls.Config().base)))
    except (UntrustedCode, ConfigError):  # reported later, with the setting or file that names the base
        return None


def _build_method(cls: type[Method], settings: Settings, data: DataConfig, prefix: str) -> Any:
    """Build the settings of a method; its setting `num_frames`, if any, defaults to `data.num_frames`."""
    values = select_prefix(settings, prefix)
    frames = settings_called("num_frames", cls.Config, values)
    made: Any = build(cls.Config, {**dict.fromkeys(frames, data.num_frames), **values}, prefix)
    known: Capabilities = cls.capabilities(made)
    if known.required_num_frames not in {None, data.num_frames}:
        raise ConfigError(
            f"{known.required_num_frames} differs from data.num_frames={data.num_frames}",
            f"{prefix}.{frames[0] if frames else 'num_frames'}",
            remedy="Omit it, or change data.num_frames.",
        )
    if data.sampling == "one_per_second" and not cls.wraps and not known.masks_missing_frames:
        remedy = f"{prefix}.mask_missing=true, or " if hasattr(made, "mask_missing") else ""
        raise ConfigError(
            "one_per_second leaves frame slots of short videos empty, but this retriever reads all slots",
            "data.sampling",
            remedy=f"Use {remedy}data.sampling=segments or linspace.",
        )
    return made


def _build_base(cls: type[Method], method: Any, settings: Settings, data: DataConfig) -> Any:
    """Build the settings of the base that a strategy wraps; return None for a retriever.

    Raises:
        ConfigError: if the strategy cannot wrap the base.
    """
    name, own = settings["method"], select_prefix(settings, "base")
    if not cls.wraps and own:
        raise ConfigError(f"{name} does not wrap another method", f"base.{next(iter(own))}", remedy="Omit it.")
    if not cls.wraps:
        return None
    try:
        wrapped = get_method(method.base)
    except UntrustedCode:
        raise
    except ConfigError as error:
        raise error.at("method.base") from error
    if wrapped.wraps:
        raise ConfigError(
            f"{name} cannot wrap {method.base}, which is a strategy itself; base.* holds the settings of "
            "one retriever only",
            "method.base",
            remedy="Use a retriever, such as clip4clip.",
        )
    base = _build_method(wrapped, settings, data, "base")
    try:
        cls.check_base(method, wrapped, base)
    except SettingError as error:
        said = setting_error(error, "method")
        fault = f"{name} cannot wrap {method.base}: {said.fault}"
        raise ConfigError(fault, "method.base", remedy=said.remedy, write=said.write) from error
    except ValueError as error:
        raise ConfigError(f"{name} cannot wrap {method.base}: {error}", "method.base") from error
    return base


def _refuse_unknown_names(method: type[Method], settings: Mapping[str, Any]) -> None:
    """Raise a ConfigError for a setting that does not exist; `base.*` is checked when the base is built."""
    known = settings_of(method)
    for name, value in settings.items():
        if name not in known and not name.startswith("base."):
            raise unknown_setting(name, value, known)


def settings_of(method: type[Method]) -> list[str]:
    """List the dotted names of all settings of a method's run, except `base.*`; top-level settings come first."""
    groups: dict[str, Any] = {"method": method.Config, **GROUPS}
    return [
        *(field.name for field in fields(RunConfig)),
        *(f"{group}.{name}" for group, config in groups.items() for name in setting_names(config)),
    ]
