"""`make chaos KILLS=n SEED=s`: kill runs, resume them, and compare them with runs that were not killed.

Exit status: 0 no difference, 1 differences, 2 bad usage. The last line on stdout is their count. Stories with the same
seed and number are the same: `--only NUMBER` repeats one of them.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested kills."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.__main__", description="Kill runs and compare.")
    parser.add_argument("--kills", type=int, default=200, help="SIGKILLs that must hit (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed, and when (%(default)s)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--engine", action="store_true", help="one process without Ray (the default)")
    kind.add_argument("--ray", action="store_true", help="nested sweeps: worker, trial driver, driver, MLflow server")
    kind.add_argument(
        "--core", action="store_true", help="the same: raylet, GCS, Train controller, MLflow server, memory"
    )
    kind.add_argument("--commands", action="store_true", help="exports, imports, gc, rebuild, runs rm; then again")
    parser.add_argument("--workers", type=int, default=1, help="of each trial of nested sweeps (%(default)s)")
    parser.add_argument("--cases", metavar="NAMES", help="of runs without Ray, with commas between (all)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="tell this story alone, and keep its folder")
    arguments = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="chaos", dir="/tmp"))  # short: sockets of Ray lie below it
    wrong: list[str] = []
    try:
        if min(arguments.kills, arguments.workers) < 1 or arguments.seed < 0:
            raise ConfigError("--kills and --workers must be >= 1 and --seed >= 0.")
        tell = partial(kill_engine, cases=_cases(arguments.cases))
        if arguments.commands:
            from tests.chaos.commands import kill_commands

            tell = kill_commands
        if arguments.ray or arguments.core:
            tell = partial(kill_sweeps, workers=arguments.workers, is_core=arguments.core)
        summary, wrong = tell(folder, arguments.kills, arguments.seed, arguments.only)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"chaos: {error}\n")
        return 2
    finally:
        if wrong or arguments.only is not None:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(summary + "\n")
    return 1 if wrong else 0


def _cases(names: str | None) -> tuple[str, ...]:
    from tests.chaos.cases import CASES

    wanted = tuple(names.split(",")) if names else tuple(CASES)
    if unknown := sorted(set(wanted) - CASES.keys()):
        raise ConfigError(f"--cases: {unknown[0]!r} is not one of {', '.join(CASES)}.")
    return wanted


def kill_engine(folder: Path, kills: int, seed: int, only: int | None, cases: Sequence[str]) -> tuple[str, list[str]]:
    """Kill runs without Ray `kills` times; return the summary and the differences found."""
    from tests.chaos.engine import Engine, Outcome

    engine = Engine(folder, seed, tuple(cases))
    engine.prepare()
    for method, run in engine.unbroken.items():
        say(f"{method}: unbroken run {run.seconds:.2f} s, {run.calls['away']} durable calls, digest {run.digest[:12]}")
    stories: list[Outcome] = []
    hits, number, started = 0, only or 0, time.monotonic()
    while hits < kills and (only is None or not stories):
        begun = time.monotonic()
        outcome = engine.tell(engine.story(number), kills - hits)
        outcome.seconds = time.monotonic() - begun
        stories.append(outcome)
        hits += len(outcome.kills)
        for problem in outcome.wrong:
            say(f"story {number} ({outcome.story}): {problem}. Again: --engine --seed {seed} --only {number}")
        number += 1
        if number % 25 == 0:
            say(f"{number} runs, {hits} kills, {sum(bool(t.wrong) for t in stories)} mismatches")
    for case in cases:
        of = [outcome for outcome in stories if outcome.story.method == case]
        hit, bad = sum(len(outcome.kills) for outcome in of), sum(bool(outcome.wrong) for outcome in of)
        say(f"{case}: {hit} kills, {bad} mismatches, {len(of)} runs, {sum(outcome.seconds for outcome in of):.0f} s")
    where = Counter("at random moments" if k.call is None else f"{k.when} a write" for t in stories for k in t.kills)
    recovery = [seconds for outcome in stories for seconds in outcome.recovery]
    parts = [
        f"{hits} kills",
        f"{sum(bool(outcome.wrong) for outcome in stories)} mismatches",
        f"{len(stories)} runs",
        ", ".join(f"{count} {what}" for what, count in sorted(where.items())),
        f"{sum(outcome.recomputed for outcome in stories)} tasks begun again",
        recovery_text(recovery),
        f"{time.monotonic() - started:.0f} s",
    ]
    return "chaos: " + ", ".join(parts), [problem for outcome in stories for problem in outcome.wrong]


def kill_sweeps(
    folder: Path, kills: int, seed: int, only: int | None, workers: int = 1, is_core: bool = False
) -> tuple[str, list[str]]:
    """Do the same as `kill_engine` with nested sweeps on a separate Ray cluster."""
    from tests.chaos.sweeps import OF_RAY, VICTIMS, Outcome, Sweeps

    sweeps, outcomes = Sweeps(folder, seed, workers, OF_RAY if is_core else VICTIMS), list[Outcome]()
    hits, number, kind = 0, only or 0, "--core" if is_core else "--ray"
    try:
        sweeps.prepare()
        say(f"unbroken sweep: {sweeps.seconds:.0f} s, {len(sweeps.commits)} commits, {len(sweeps.metrics)} metrics")
        started = time.monotonic()
        while hits < kills and (only is None or not outcomes):
            outcomes.append(sweeps.tell(number, sweeps.kills(number)[: kills - hits]))
            hits += len(outcomes[-1].kills)
            victims = ", ".join(kill.victim for kill in outcomes[-1].kills)
            say(
                f"sweep {number}: {outcomes[-1].seconds:.0f} s, killed: {victims}; "
                f"{recovery_text(outcomes[-1].recovery)}"
            )
            for problem in outcomes[-1].wrong:
                say(f"sweep {number}: {problem}. Again: {kind} --seed {seed} --only {number}")
            number += 1
    finally:
        sweeps.close()
    who = Counter(kill.victim for each in outcomes for kill in each.kills)
    parts = [
        f"{hits} kills",
        f"{sum(bool(each.wrong) for each in outcomes)} mismatches",
        f"{len(outcomes)} sweeps",
        ", ".join(f"{count} {victim}" for victim, count in sorted(who.items())),
        recovery_text([seconds for each in outcomes for seconds in each.recovery]),
        f"{time.monotonic() - started:.0f} s",
    ]
    return "chaos: " + ", ".join(parts), [problem for each in outcomes for problem in each.wrong]


def recovery_text(seconds: Iterable[float]) -> str:
    """Format the times from a kill to the next finished task."""
    known = list(seconds)
    if not known:
        return "no recovery was needed"
    return f"recovery median {statistics.median(known):.2f} s, max {max(known):.2f} s"


if __name__ == "__main__":
    sys.exit(main())
