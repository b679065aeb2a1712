"""Command names of other tools and earlier versions, which are refused with the command to use instead."""

from __future__ import annotations

from collections.abc import Sequence


def _actions(command: str, words: dict[str, str]) -> dict[str, str]:
    """Map the names that other tools use for the actions of a command to our commands."""
    return {
        f"{command} {word}": f"{command} {meant}".strip()
        for meant, others in {"": "list ls all", **words}.items()
        for word in others.split()
    }


OTHER_WORDS = {  # beginning of another tool's command -> beginning of our command
    **dict.fromkeys(("ls", "list"), "runs"),
    **dict.fromkeys(("eval", "evaluate"), "table"),
    **dict.fromkeys(("tensorboard", "mlflow"), "ui"),
    "version": "--version",
    "train": "run",
    "rm": "runs rm",
    "show": "runs show",
    "compare": "runs compare",
    "publish": "runs publish",
    "import": "streams import",
    "gc": "cache gc",
    # Earlier versions
    **dict.fromkeys(("conform", "check-method"), "methods check"),
    **dict.fromkeys(("new method", "new"), "methods new"),
    "attach": "runs attach",
    "explain": "runs explain",
    "frames": "streams frames",
    "look": "plot",
    "page": "report",
    "rebuild": "runs sync --rebuild",
    "schema": "methods --json",
    "sync": "runs sync",
    **_actions("runs", {"rm": "delete del remove", "show": "info view", "sync --rebuild": "rebuild"}),
    **_actions("streams", {"check": "show info view verify", "import": "add"}),
    **_actions("methods", {"show": "info view", "new": "add create", "check": "verify test", "--json": "schema"}),
    **_actions("cache", {"": "list ls all show", "verify": "check", "gc": "clean clear prune"}),
}


def correct(words: Sequence[str]) -> list[str] | None:
    """Return the command to use instead, or None if the table lacks the first words of the given command.

    Args:
        words: all arguments after the program's name.
    """
    for size in (2, 1):
        if (meant := OTHER_WORDS.get(" ".join(words[:size]))) is not None:
            return [*meant.split(), *words[size:]]
    return None
