"""`python -m tests.devices [NAME ...]`: a table of the host waits of every method and case, or of those named.

`--write` writes them to budget.json.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.devices.cases import CASES, EVERY, FILE
from tests.devices.drive import PHASES, STEPS, TASKS, Report, examine

HEAD = ("", f"waits of {STEPS} steps", "of end_task", "of the search", "operators a step")


def main() -> None:
    found: dict[str, Report] = {}
    asked = [word for word in sys.argv[1:] if word != "--write"]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for name in (name for name in EVERY if name in (asked or EVERY)):
            found[name] = pool.submit(examine, name, "bf16").result()
        for label, given in CASES.items() if not asked else ():
            found[label] = pool.submit(examine, label.partition(",")[0], "fp32", **given).result()
    sys.stdout.write("| " + " | ".join(HEAD) + " |\n|---|--:|--:|--:|--:|\n")
    for label, report in found.items():
        numbers = [*(report.waits[phase] for phase in PHASES), sum(report.operators.values()) // (STEPS * TASKS)]
        sys.stdout.write(f"| {label} | " + " | ".join(map(str, numbers)) + " |\n")
    if "--write" in sys.argv and not asked:
        lines = [f" {json.dumps(label)}: {json.dumps(report.waits)}" for label, report in found.items()]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
