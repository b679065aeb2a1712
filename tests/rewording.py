"""Reverse the words of ConfigError, SettingError and Mistake, to show that no code and no other test reads them.

`pytest --reword` reverses each fault and remedy. The data of an error (place, value, correction, settings) stay. A test
that compares wording on purpose is marked `wording` and is skipped.
"""

from __future__ import annotations

import pytest


class Reworded(str):
    """A text with its words reversed; it is not reversed again."""

    original: str


def reworded(text: object) -> Reworded:
    """Return a text with its words in reverse order."""
    if isinstance(text, Reworded):
        return text
    words = Reworded(" ".join(reversed(str(text).split(" "))))
    words.original = str(text)
    return words


def reword(patch: pytest.MonkeyPatch) -> None:
    """Reverse the words of every ConfigError, SettingError and Mistake until the patch is undone."""
    from ctvr.methods.settings import SettingError
    from ctvr.orchestrator.cli.mistakes import Mistake
    from ctvr.orchestrator.errors import ConfigError, Mistakes

    make, described, mistake = ConfigError.__init__, ConfigError.described.fget, Mistake.__init__

    def error_init(self, fault="", where="", got=None, remedy="", *data, **named):
        fault, remedy = (getattr(text, "original", text) for text in (fault, remedy))  # `args` are pickled as they were
        make(self, fault, where, got, remedy, *data, **named)
        if not isinstance(self, Mistakes):  # its lines are texts that are reworded, and commands
            self.fault, self.remedy = reworded(self.fault), reworded(self.remedy)

    def setting_text(self):
        fault, remedy, write = (self.qualify("", text) for text in self.args)
        return f"{reworded(fault)}. {reworded(remedy) or (write and f'Write {write}.')}".rstrip()

    def mistake_init(self, fault, *data, **named):
        mistake(self, reworded(fault), *data, **named)
        object.__setattr__(self, "remedy", reworded(self.remedy))

    patch.setattr(ConfigError, "__init__", error_init)
    patch.setattr(ConfigError, "described", property(lambda self: Reworded(described(self))))
    patch.setattr(SettingError, "__str__", setting_text)
    patch.setattr(Mistake, "__init__", mistake_init)
