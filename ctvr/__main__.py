"""`python -m ctvr` and the command `ctvr`."""

import os
import sys


def main() -> int:
    """Run the command line."""
    from ctvr.orchestrator.cli.main import main as ctvr
    from ctvr.orchestrator.interpreter import SAFE_PATH

    os.environ.setdefault(SAFE_PATH, "1")  # for the processes that Ray, MLflow and multiprocessing start
    return ctvr()


if __name__ == "__main__":
    sys.exit(main())
