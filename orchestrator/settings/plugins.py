"""Functions and classes of other packages that a setting names: metrics, optimizers and mirrors.

A name is that of an entry point `ctvr.GROUP` of an installed package, or `MODULE:NAME`, which the user must trust. A
built-in name means the built-in object, also if an entry point has this name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from ctvr.methods import UntrustedClass
from ctvr.methods.plug_ins import installed, owners_of
from ctvr.methods.user_code import load_object, place_in_user_code
from ctvr.orchestrator.config import closest
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError, CtvrError, UntrustedCode
from ctvr.orchestrator.keys.foreign_code import digest_closure

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plugins:
    """The objects that a setting may name: built-in objects, and objects of other packages.

    Attributes:
        kind: one word for such an object, for messages (`metric`).
        group: group of the entry points, after `ctvr.`.
        setting: name of the setting.
        built_in: names of the built-in objects.
    """

    kind: str
    group: str
    setting: str
    built_in: tuple[str, ...] = ()

    def check(self, name: str) -> None:
        """Refuse a name that cannot be used, and warn of an entry point that has a built-in name."""
        self.load(name)
        if name in self.built_in and (point := installed(self.group).get(name)) is not None:
            log.warning(
                "%s: %s is built in, so %s of another package is not used. Rename its entry point.",
                *(self.setting, name, point.value),
            )

    def load(self, name: str) -> Callable[..., Any] | None:
        """Return the function or class that a name refers to; None for a built-in name.

        Raises:
            UntrustedCode: for a `MODULE:NAME` that the user does not trust.
            ConfigError: for an unknown name, and for an object that cannot be imported or called.
        """
        if name in self.built_in:
            return None
        point, is_installed = self._find(name)
        try:
            found = load_object(point, is_installed)
        except UntrustedClass as error:
            raise UntrustedCode(error.place, self.setting) from error
        except ValueError as error:
            raise ConfigError(error, self.setting) from error
        if not callable(found):
            raise ConfigError(
                f"{point.value} is of the type {type(found).__name__}, so it cannot be called",
                self.setting,
                remedy="Use the name of a function or a class.",
            )
        return found

    def call(self, name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call what `load` returned for a name.

        Raises:
            ConfigError: if it raises an exception; the message states its line.
        """
        try:
            return function(*given, **named)
        except (CtvrError, MemoryError):
            raise
        except Exception as error:
            place = place_in_user_code(error)
            said = f"{type(error).__name__}: {' '.join(str(error).split()):.300}{place and f', {place}'}"
            raise ConfigError(
                f"{name} raised {said}", self.setting, remedy=f"Correct it, or use another {self.kind}."
            ) from error

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """Return the digest of the code of each name that is not built in, for the key of a run."""
        points = {name: self._find(name)[0] for name in names if name not in self.built_in}
        return {
            f"code of {self.kind} {name}": digest_of([point.value, digest_closure(point.module)])
            for name, point in points.items()
        }

    def _find(self, name: str) -> tuple[EntryPoint, bool]:
        """Return the entry point of a name, and whether a package has installed it."""
        others = installed(self.group)
        if name in others:
            if len(owners := owners_of(self.group, name)) > 1:
                fault = f"{name} is a {self.kind} of {' and '.join(owners)}"
                raise ConfigError(fault, self.setting, remedy="Uninstall one of them.")
            return others[name], True
        if re.fullmatch(r"\w[\w.]*:[^\W\d][\w.]*", name):
            return EntryPoint(name, name, f"ctvr.{self.group}"), False
        known = [*self.built_in, *(each for each in others if each not in self.built_in)]
        meant = closest(name, known)
        listed = f"Use one of {', '.join(known)}, or" if known else "No installed package has one. Use"
        hint = f"Did you mean {meant!r}?" if meant else f"{listed} MODULE:NAME of your own."
        raise ConfigError(f"no {self.kind} is called {name!r}", self.setting, remedy=hint)
