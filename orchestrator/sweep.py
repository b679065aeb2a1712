"""The entry of `ray submit cluster/a100.yaml orchestrator/sweep.py` and of `python orchestrator/sweep.py`.

Ray copies this one file to the head node and runs it there, so it imports the installed package by
absolute names. Arguments are those of `ctvr sweep`; without any, the main job runs on the embedded stream.
There the sweep gets a session of its own, so that it goes on where the connection is lost: see
orchestrator/cli/detached.py.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Hand over to the command line; a source checkout works as well as an installation."""
    here = str(Path(__file__).resolve().parent)
    # Run as a script, this file's folder comes first on the path and its modules would hide others of their name
    sys.path[:] = [entry for entry in sys.path if str(Path(entry or ".").resolve()) != here]
    root = Path(__file__).resolve().parent.parent
    if (root / "orchestrator" / "cli" / "main.py").is_file() and str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        from orchestrator.cli.detached import submit
        from orchestrator.cli.main import main as ctvr
    except ModuleNotFoundError as error:
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
    return Path(__file__).resolve().parent == Path.home().resolve()


if __name__ == "__main__":
    sys.exit(main())
