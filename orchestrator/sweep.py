"""The entry of `ray submit cluster/a100.yaml orchestrator/sweep.py` and of `python orchestrator/sweep.py`.

Ray copies this one file to the head node and runs it there, so it imports the installed package by
absolute names. Arguments are those of `ctvr sweep`; without any, the main job runs on the embedded stream.
There the sweep gets a session of its own, so that it goes on where the connection is lost: see
orchestrator/cli/detached.py.
"""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))


def main() -> int:
    """Hand over to the command line; a source checkout works as well as an installation."""
    # Run as a script, this file's folder comes first on the path: the home, or modules of ours that would hide others
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != HERE]
    root = os.path.dirname(HERE)
    if os.path.isfile(os.path.join(root, "ctvr", "orchestrator", "cli", "main.py")) and root not in sys.path:
        sys.path.insert(0, root)
    try:
        from ctvr.__main__ import main as ctvr
        from ctvr.orchestrator.cli.detached import submit
    except ModuleNotFoundError as error:
        if error.name == "ctvr.__main__":  # a file ctvr.py of the user has no modules
            sys.stderr.write(f"sweep.py: {sys.modules['ctvr'].__file__} hides the package ctvr. Rename that file.\n")
            return 2
        sys.stderr.write(
            f"sweep.py: {error.name} is not installed on this machine. Install the project: pip install -e .\n"
        )
        return 2
    words = sys.argv[1:]
    if _is_submitted() and not {"-h", "--help"} & set(words):
        return submit(words)
    sys.argv[1:] = ["sweep", *words]
    return ctvr()


def _is_submitted() -> bool:
    """Whether this copy stands where `ray submit` puts it: its connection may be lost, and the sweep must not be."""
    return os.path.realpath(os.path.expanduser("~")) == HERE


if __name__ == "__main__":
    sys.exit(main())
