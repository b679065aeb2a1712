"""`python -m orchestrator` and the command `ctvr`."""

import os
import sys


def main() -> int:
    """Run the command line, after a check that no file of the user hides our packages."""
    from orchestrator.interpreter import SAFE_PATH, hidden_package

    if hidden := hidden_package():
        sys.stderr.write(f"ctvr: {hidden}\n")
        return 2
    os.environ.setdefault(SAFE_PATH, "1")  # of the processes that Ray, MLflow and multiprocessing start
    from orchestrator.cli.main import main as ctvr

    return ctvr()


if __name__ == "__main__":
    sys.exit(main())
