"""Script for `ray submit cluster/a100.yaml orchestrator/sweep.py` and `python orchestrator/sweep.py`.

Ray copies only this file to the head node and runs it there, so it imports the installed package by
absolute names. It takes the arguments of `ctvr sweep`; without any, it searches FrameFusionMoE on the
embedded stream. On the head node the sweep runs in its own session and survives a lost connection: see
orchestrator/cli/detached.py.
"""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))


def main() -> int:
    """Run `ctvr sweep` from a source checkout or an installation."""
    # Python puts the script's folder first. It is the home folder, or has modules of ours that would shadow others
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != HERE]
    root = os.path.dirname(HERE)
    if os.path.isfile(os.path.join(root, "ctvr", "orchestrator", "cli", "main.py")) and root not in sys.path:
        sys.path.insert(0, root)
    try:
        from ctvr.__main__ import main as ctvr
        from ctvr.orchestrator.cli.detached import submit
    except ModuleNotFoundError as error:
        if error.name == "ctvr.__main__":  # a user's file ctvr.py shadows the package
            sys.stderr.write(f"sweep.py: {sys.modules['ctvr'].__file__} hides the package ctvr. Rename that file.\n")
            return 2
        sys.stderr.write(
            f"sweep.py: {error.name} is not installed on this machine. Install the project: pip install -e '.[all]'\n"
        )
        return 2
    words = sys.argv[1:]
    if _is_submitted() and not {"-h", "--help"} & set(words):
        return submit(words)
    sys.argv[1:] = ["sweep", *words]
    return ctvr()


def _is_submitted() -> bool:
    """Return whether `ray submit` copied this file to the home folder; the sweep must survive the connection."""
    return os.path.realpath(os.path.expanduser("~")) == HERE


if __name__ == "__main__":
    sys.exit(main())
