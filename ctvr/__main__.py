"""`python -m ctvr` and the command `ctvr`."""

import os
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit."""
    from ctvr.orchestrator.cli.main import main as ctvr
    from ctvr.orchestrator.interpreter import SAFE_PATH, leave

    os.environ.setdefault(SAFE_PATH, "1")  # for the processes that Ray, MLflow and multiprocessing start
    leave(ctvr())


if __name__ == "__main__":
    main()
