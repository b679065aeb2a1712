"""Options that have no effect in a call, because another option is missing or replaces them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ctvr.orchestrator.cli.mistakes import Mistake
from ctvr.orchestrator.cli.option_mistakes import is_option

_OF_TRIALS = (
    *("--storage", "--workers", "--cpus-per-worker", "--accelerator-type", "--worker-timeout-hours"),
    *("--no-reuse", "--max-concurrent", "--max-nodes", "--budget-hours"),
)
_CLUSTER = ("--cluster", "--address")
# Command -> option -> groups of options, of each of which it needs one; () if the command never reads it
NEEDS: dict[str, dict[str, tuple[tuple[str, ...], ...]]] = {
    "cache build": {
        **dict.fromkeys(_OF_TRIALS, ()),
        **dict.fromkeys(("--nodes", "--local-cpus"), (_CLUSTER,)),
        "--gpus-per-trial": (("--features",), _CLUSTER),
    },
    "streams export": {"--form": (("--frames", "--features"),), "--license": (("--hf",),)},
}
# Command -> option -> the option, or its value, that replaces it
REPLACED: dict[str, dict[str, str]] = {
    "doctor": dict.fromkeys(("--stream", "--videos"), "--gpu"),
    "sweep": dict.fromkeys(("--top", "--task-orders", "--baselines"), "--seeds=0"),
}


def without_effect(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[Mistake]:
    """Return a mistake for each option that has no effect in a call. A script may pass an option's default.

    Args:
        parser: parser of the command.
        words: the words after the command, with valid options.
    """
    command, typed = parser.prog.removeprefix("ctvr "), dict[str, tuple[str, ...]]()
    for at, word in enumerate(words):
        name = word.partition("=")[0]
        if is_option(word) and (action := parser._option_string_actions.get(name)) is not None:
            typed[name] = (word,) if "=" in word or action.nargs == 0 else tuple(words[at : at + 2])
    given = {*typed, *("=".join(pair) for pair in typed.values())}
    of_user = {
        name
        for name, pair in typed.items()
        if "=".join(pair).partition("=")[2] != str(parser._option_string_actions[name].default)
    }
    found = []
    for option, needed in NEEDS.get(command, {}).items():
        others = next((group for group in needed if given.isdisjoint(group)), ())
        if option in of_user and (others or not needed):
            fault = f"{option}: has no effect{' without ' + ' or '.join(others) if others else f' on ctvr {command}'}"
            remedy = f"Add {others[0]}, or omit {option}." if others else "Omit it."
            found.append(Mistake(fault, typed[option], None if others else (), remedy, option))
    for option, other in REPLACED.get(command, {}).items():
        if option in of_user and other in given:
            fault = f"{option}: has no effect with {other.replace('=', ' ')}"
            found.append(Mistake(fault, typed[option], None, "Omit one of them.", option))
    return found
