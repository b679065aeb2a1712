"""`python -m tests.fuzz --count 2000 --seed 3`: damaged inputs for every reader; exit status 1 if any is mishandled."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", MLFLOW_DISABLE_TELEMETRY="true")


def main() -> int:
    from tests.fuzz.engine import fuzz
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="inputs of all readers together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--targets", default="", help="readers, by comma (default: all)")
    parser.add_argument("--only", type=int, help="the number of one input, which is read in this process")
    arguments = parser.parse_args()
    names = [name for name in arguments.targets.split(",") if name]
    known = [target.name for target in TARGETS]
    if unknown := set(names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Readers: {', '.join(known)}")
    each = -(-arguments.count // len(names or known))
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.environ["CTVR_CACHE"] = folder
        report = fuzz(Path(folder).resolve() / "f", arguments.seed, each, names, arguments.only)
        os.chdir("/")
    sys.stdout.write(f"{report}\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
