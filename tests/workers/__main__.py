"""`python -m tests.workers [METHOD ...]`: differences between several workers and one, as the table of docs/gpu.md."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from tests.workers.compare import distances
from tests.workers.group import together
from tests.workers.test_workers import EVERY, MORE, alone

HEAD = ("", "2 workers", "3 workers", "2 workers with simulated GPUs", "waits of 2 steps there")


def main() -> None:
    torch.set_num_threads(1)
    cases = [case for case in (*EVERY, *MORE) if not sys.argv[1:] or case.method in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected, rows = alone(cases, folder), {case.name: [case.name] for case in cases}
        for size, device in ((2, "cpu"), (3, "cpu"), (2, "cuda")):
            found: dict[str, list[dict[str, object]]] = {}
            together(size, [replace(case, device=device) for case in cases], folder, folder / "store", found)
            for case in cases:
                first = found[replace(case, device=device).name][0]
                loss, tensors = distances(first, expected[case.name])
                rows[case.name].append(f"{loss:.0e}, {tensors:.0e}")
                if device == "cuda":
                    rows[case.name].append(str(sum(dict(first["waits"]).values())))  # type: ignore[call-overload]
    lines = [HEAD, ("---", *["--:"] * (len(HEAD) - 1)), *rows.values()]
    sys.stdout.write("".join("| " + " | ".join(line) + " |\n" for line in lines))


if __name__ == "__main__":
    main()
