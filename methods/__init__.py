"""The tables of built-in methods. A value is `module:Class`, so that a module is imported only if its method is used.

A new method needs its file or folder, one line here, an entry in `search_spaces/` and `tests/methods/test_<name>.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ctvr.methods.plug_ins import installed

if TYPE_CHECKING:
    from ctvr.methods.base import Method

METHOD_FOLDERS = "CTVR_METHOD_FOLDERS"  # environment variable of Ray workers: folders with the user's own methods
# Retrievers of videos, and strategies that wrap them
METHODS = {
    "zero_shot": "ctvr.methods.zero_shot:ZeroShot",
    "head_linear": "ctvr.methods.heads:HeadLinear",
    "head_low_rank": "ctvr.methods.heads:HeadLowRank",
    "head_mlp": "ctvr.methods.heads:HeadMlp",
    "head_ridge": "ctvr.methods.head_ridge:HeadRidge",
    "dns": "ctvr.methods.dns:DNS",
    "clip4clip": "ctvr.methods.clip4clip:Clip4Clip",
    "upper_bound": "ctvr.methods.upper_bound:UpperBound",
    "framefusion_moe": "ctvr.methods.framefusion_moe:FrameFusionMoE",
    "structalign": "ctvr.methods.structalign:StructAlign",
    "camoe": "ctvr.methods.camoe:CAMoE",
    "dsl": "ctvr.methods.dsl:DSL",
    "lora": "ctvr.methods.lora:Lora",
    "prompt": "ctvr.methods.prompt:Prompt",
    "adapter": "ctvr.methods.adapter:Adapter",
    "tempme": "ctvr.methods.tempme:TempMe",
    "dgl": "ctvr.methods.dgl:DGL",
    "mv_adapter": "ctvr.methods.mv_adapter:MVAdapter",
    "plevu": "ctvr.methods.plevu:PLEVU",
    "umt": "ctvr.methods.umt:UMT",
    "vop": "ctvr.methods.vop:VoP",
    "xpool": "ctvr.methods.xpool:XPool",
    "clip_vip": "ctvr.methods.clip_vip:CLIPViP",
    "moe_adapter": "ctvr.methods.moe_adapter:MoEAdapter",
    "cclip": "ctvr.methods.cclip:CCLIP",
    "lpi": "ctvr.methods.lpi:LPI",
    "dar": "ctvr.methods.dar:DAR",
    "lwf": "ctvr.methods.lwf:LwF",
    "vr_lwf": "ctvr.methods.vr_lwf:VRLwF",
    "zscl": "ctvr.methods.zscl:ZSCL",
    "er_ring": "ctvr.methods.er_ring:ERRing",
    "der": "ctvr.methods.der:DER",
    "ewc": "ctvr.methods.ewc:EWC",
    "ctp": "ctvr.methods.ctp:CTP",
    "co2l": "ctvr.methods.co2l:Co2L",
    "lump": "ctvr.methods.lump:LUMP",
    "qdc": "ctvr.methods.qdc:QDC",
    "drift_adapter": "ctvr.methods.drift_adapter:DriftAdapter",
    "xbt": "ctvr.methods.xbt:XBT",
    "lambda_orthogonality": "ctvr.methods.lambda_orthogonality:LambdaOrthogonality",
    "base_moco": "ctvr.methods.base_moco:BaseMoCo",
    "bmu_moco": "ctvr.methods.bmu_moco:BMUMoCo",
    "bmu_fixed": "ctvr.methods.bmu_fixed:BMUFixed",
    "bmu_ensemble": "ctvr.methods.bmu_ensemble:BMUEnsemble",
    "lwf_moco": "ctvr.methods.lwf_moco:LwFMoCo",
    "co2l_moco": "ctvr.methods.co2l_moco:Co2LMoCo",
    "lump_moco": "ctvr.methods.lump_moco:LUMPMoCo",
}

# Methods over labeled images without captions (`Method.domain`): only for streams of the protocol `ucl`
IMAGE_METHODS = {
    "image_finetune": "ctvr.methods.images.siamese:Siamese",
    "image_si": "ctvr.methods.images.si:ImageSI",
    "image_der": "ctvr.methods.images.replay:ImageDER",
    "image_lump": "ctvr.methods.images.replay:ImageLUMP",
    "image_bmu_moco": "ctvr.methods.images.bmu_moco:ImageBMUMoCo",
    "image_multi_task": "ctvr.methods.images.multi_task:ImageMultiTask",
    "image_progressive": "ctvr.methods.images.progressive:ImageProgressive",
}
# Methods over questions about videos: only for streams of the protocol `qa`
QUESTION_METHODS = {"umt_qa": "ctvr.methods.umt_qa:UmtQA"}
EVERY_METHOD = {**METHODS, **IMAGE_METHODS, **QUESTION_METHODS}

# Rows of published tables that are a method with a preset. A row's name is accepted wherever a method's name is. Under
# a row's name, the preset `<other>` means the method's preset `<preset>-<other>`, if it has one: `er_ring_moco` with
# `paper` is `er_ring` with `bmu-moco-paper`. A row has its own search space where its search differs from the method's.
CONFIGURATIONS = {
    "tome": ("lora", "tome"),
    "evit": ("lora", "evit"),
    "sta": ("lora", "sta"),
    "diffrate": ("lora", "diffrate"),
    "testa": ("lora", "testa"),
    "dgl_transformer": ("dgl", "transformer"),
    "umt4clip": ("umt", "umt4clip"),
    "vop_fc": ("vop", "fc"),
    "bmu_moco_local": ("bmu_moco", "local"),
    "er_ring_moco": ("er_ring", "bmu-moco"),
    "der_moco": ("der", "bmu-moco"),
    "tvr_plus_cl": ("vr_lwf", "tvr-plus-cl"),
}


def plugins() -> dict[str, str]:
    """Return a dictionary from method names to `module:Class`, for the entry points `ctvr.methods` of other packages.

    Entry points with the name of a built-in method are left out.
    """
    return {name: point.value for name, point in installed("methods", {*EVERY_METHOD, *CONFIGURATIONS}).items()}


def place_of(name: str) -> str:
    """Return the `module:Class` of the method called `name`; if `name` already has this form, return it unchanged.

    Raises:
        UnknownMethod: for an unknown name; the error suggests the most similar known name.
    """
    if _is_former(name):
        return f"ctvr.{name}"
    own = CONFIGURATIONS.get(name, (name, ""))[0]
    if own in EVERY_METHOD:
        return EVERY_METHOD[own]
    others = plugins()
    if name in others:
        return others[name]
    if _CLASS.fullmatch(name):
        return name
    raise unknown_method(name)


class UnknownMethod(ValueError):
    """Error for an unknown method name.

    Attributes:
        name: name as the user gave it.
        remedy: what to do, in whole sentences.
        meant: known method name, or `module:Class` in a file of the user, that is most similar; "" if none is similar.
    """

    def __init__(self, name: str, remedy: str, meant: str = "") -> None:
        super().__init__(name, remedy, meant)
        self.name, self.remedy, self.meant = name, remedy, meant

    def __str__(self) -> str:
        return f"no method called {self.name!r}. {self.remedy}"


def unknown_method(name: str) -> UnknownMethod:
    """Return the error for an unknown method name, which suggests a similar method or a class in the named file."""
    folded = re.sub(r"[- ]", "_", name.partition(":")[0].lower())
    close = difflib.get_close_matches(folded, [*EVERY_METHOD, *CONFIGURATIONS, *plugins()], n=1)
    meant = _class_in_file(name) or (close[0] if close else "")
    hint = f"Did you mean {meant}? " if meant else "A class in a file is written MODULE:CLASS. " * (":" in name)
    return UnknownMethod(name, f"{hint}All: `ctvr methods`.", meant)


def _class_in_file(name: str) -> str:
    """Return the `module:Class` that an inexact name such as `mine`, `mine.py`, `mine.Norms` or `mine:norms` means.

    The file (mine.py) is searched in the current folder. The result is "" if it is missing or defines no method.
    """
    parts = re.fullmatch(r"(?:\./)?(\w+)(?:\.py)?(?:[:.](\w*))?", name)
    file = Path(f"{parts[1]}.py") if parts else Path()
    if parts is None or not os.path.isfile(file):
        return ""
    classes = re.findall(r"(?m)^class (\w+)\(.*Method\b", file.read_text(encoding="utf-8", errors="replace"))
    close = difflib.get_close_matches((parts[2] or "").title(), classes, n=1, cutoff=0.8)
    return f"{parts[1]}:{(close or classes)[0]}" if classes else ""


def _is_former(name: str) -> bool:
    """Return whether `name` is the `module:Class` that a built-in method had before version 0.3 (`methods.x:Y`).

    It is false if the user has a module `methods`.
    """
    if f"ctvr.{name}" not in EVERY_METHOD.values():
        return False
    theirs = find_in_method_folders("methods") or importlib.util.find_spec("methods")
    return theirs is None or os.path.realpath(theirs.origin or "") == os.path.realpath(__file__)


_CLASS = re.compile(r"\w[\w.-]*:[^\W\d]\w*")  # module:Class
_NAMES = re.compile(r"(?:--?[\w-]+=)?(?:[\w.]+=)?")  # name of an option and of a setting, at the start of a word
_trusted: set[str] = set()


class UntrustedClass(ValueError):
    """Error for a foreign class `place` (module:Class) that neither the user's command nor an entry point names."""

    def __init__(self, place: str) -> None:
        call = f"ctvr.methods.trust([{place!r}])"
        super().__init__(f"{place} is a class that is not allowed. Call {call} if you trust it")
        self.place = place


def named_classes(words: Iterable[object]) -> list[str]:
    """Return every `module:Class` in a user's arguments, such as `a:B`, `--space=method.base=a:B,c:D` or `["a:B"]`."""
    values = (_NAMES.sub("", str(word), count=1) for word in words)
    pieces = (piece for value in values for piece in re.split(r"[\s,\[\](){}'\"]+", value))
    return list(dict.fromkeys(piece for piece in pieces if _CLASS.fullmatch(piece)))


def trust(words: Iterable[object]) -> None:
    """Allow `find_method` to load the classes named in `words`, the user's arguments.

    A table row `method:preset` is not a class.
    """
    found = named_classes(words)
    known = {*EVERY_METHOD, *CONFIGURATIONS, *plugins()} if found else set()
    _trusted.update(word for word in found if is_place(word) or word.partition(":")[0] not in known)


def trusted() -> tuple[str, ...]:
    """Return the classes that `trust` has allowed in this process."""
    return tuple(sorted(_trusted))


def is_place(word: str) -> bool:
    """Return whether `word` is `module:Class`, not `method:preset`: its module has a dot, or its class a capital."""
    module, _, cls = word.partition(":")
    return bool(cls) and ("." in module or cls[0].isupper())


def find_method(name: str) -> type[Method]:
    """Load and return the class of a method; for a named configuration, the class of the method that it configures.

    A class that is neither built in nor an installed entry point is loaded only if `trust` has allowed it. The reason:
    a downloaded stream, model or record may name any module, and an import runs the module's code.

    Args:
        name: a key of EVERY_METHOD or CONFIGURATIONS, an entry point `ctvr.methods`, or `package.module:Class`.

    Raises:
        UntrustedClass: for a class that `trust` has not allowed.
        ValueError: for an unknown name, or a class that is not a method.
    """
    place = place_of(name)
    module, _, cls = place.partition(":")
    if place in EVERY_METHOD.values():
        return getattr(importlib.import_module(module), cls)
    if place not in plugins().values():
        if place not in _trusted:
            raise UntrustedClass(place)
        _look_in_method_folders(module)
    found = _load_foreign(name, module, cls)
    trust(_list_values(found))
    return found


def _list_values(cls: type[Method]) -> list[object]:
    """List all values that may name other classes: defaults and preset values of the class's settings, and controls."""
    defaults = [field.default for field in dataclasses.fields(cls.Config)]
    return [*defaults, *(value for preset in cls.PRESETS.values() for value in preset.values()), *cls.controls]


class _MethodFolders:
    """Import finder for the user's modules, for the modules that they import, and for their search spaces.

    The search space of `<module>` is `<module>_space`. Imports by installed modules are not served: if one of them
    probes for an optional package, a file of that name in the current folder is not found.
    """

    def __init__(self) -> None:
        self.own: set[str] = set()  # top-level names of the user's modules

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a top-level module of the user; None for any other module."""
        asked = {name, name.removesuffix("_space"), _importer()}
        if path is not None or name in sys.stdlib_module_names or not self.own & asked:
            return None
        found = find_in_method_folders(name)
        if found is not None:
            self.own.add(name)
        return found


def _importer() -> str:
    """Return the top-level name of the module whose import statement is being executed."""
    frame = sys._getframe(2)
    while True:
        top = str(frame.f_globals.get("__name__")).partition(".")[0]
        if top not in ("importlib", "_frozen_importlib", "_frozen_importlib_external") or frame.f_back is None:
            return top
        frame = frame.f_back


def find_in_method_folders(name: str) -> ModuleSpec | None:
    """Return the spec of a top-level module in the current folder or in the Ray driver's folders; None if missing."""
    folders = [os.path.abspath(os.curdir), *filter(None, os.environ.get(METHOD_FOLDERS, "").split(os.pathsep))]
    return PathFinder.find_spec(name, folders)


def _look_in_method_folders(module: str) -> None:
    """Let Python import `module`, which the user has named, from the user's folders if it is not installed."""
    top = module.partition(".")[0]
    if top in sys.modules or importlib.util.find_spec(top) is not None:
        return
    finder = next((each for each in sys.meta_path if isinstance(each, _MethodFolders)), None)
    if finder is None:
        finder = _MethodFolders()
        sys.meta_path.append(finder)  # at the end, so that it cannot replace installed modules
    finder.own.add(top)


def import_foreign(name: str, module: str) -> ModuleType:
    """Import and return a module of another package or of the user.

    Raises:
        ValueError: if the import fails; the message begins with `name`, the method or object that the user asked for.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = str(error.name).partition(".")[0]
        hint = "Install its package, or put its folder on PYTHONPATH."
        if missing != module.partition(".")[0]:
            hint = f"Install {missing}."
        elif meant := _class_in_file(name):
            hint = f"Did you mean {meant}?"
        raise ValueError(f"{name}: {module} cannot be imported ({error}). {hint}") from error
    except (Exception, SystemExit) as error:  # a mistake in the user's file
        last = traceback.extract_tb(error.__traceback__)[-1]
        file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
        said = error.msg if isinstance(error, SyntaxError) else error
        text = f"{type(error).__name__}: {said!s:.200}, {file}, line {line}"
        raise ValueError(f"{name}: {module} cannot be imported ({text}). Correct that line.") from error


def _load_foreign(name: str, module: str, cls: str) -> type[Method]:
    """Return class `cls` of a foreign `module`; raise ValueError, beginning with `name`, if it is not a method."""
    from ctvr.methods.base import Method

    found = getattr(import_foreign(name, module), cls, None)
    config = getattr(found, "Config", None)  # it may be inherited
    if not (isinstance(found, type) and issubclass(found, Method) and dataclasses.is_dataclass(config)):
        meant = _class_in_file(name)
        hint = f" Did you mean {meant}?" if meant not in ("", name) else ""
        raise ValueError(f"{name}: {cls} of {module} is not a ctvr.Method with a dataclass Config.{hint}")
    for member in ("__init__", "encode_video", "encode_text"):
        if getattr(found, member) is getattr(Method, member):
            raise ValueError(f"{name}: {cls} does not define {member}. docs/new-method.md shows a whole class.")
    return found
