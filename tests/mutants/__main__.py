"""`make mutants`: plant one bug at a time in a copy of the sources; the tests named for it must fail.

    python -m tests.mutants [--only PATTERN] [--changed [COMMIT]] [--most N] [--jobs N] [--list]

The kept bugs are in tests/mutants/bugs.yaml. `--changed` generates bugs: negated comparisons, swapped operators, other
constants and omitted calls in the functions that differ from COMMIT (HEAD), tried by the tests that mirror their
files. The sources are copied once for each job; torch is imported once, and each bug gets a forked child that imports
ours again and runs the quick tests until the first failure. The tests first run on the unchanged copy, since only tests
that pass without a bug can catch one. Exit status 1 if a bug survives.
"""

import argparse
import fnmatch
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from ctvr.orchestrator.console import say
from tests.mutants.bugs import BUGS, ROOT, Bug, generated

COPIED = ("ctvr", "methods", "orchestrator", "search_spaces", "tools", "docs", "tests", "pyproject.toml", "README.md")
SECONDS = 600.0  # of one bug's tests; what is not decided by then is not caught
CAUGHT, SURVIVED, LATE = "caught", "SURVIVED", "UNDECIDED"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=str(__doc__).split("\n")[0])
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="bugs whose file or what they break fits, e.g. *lwf*"
    )
    parser.add_argument(
        "--changed", nargs="?", const="HEAD", metavar="COMMIT", help="generate bugs in what changed since"
    )
    parser.add_argument(
        "--most", type=int, default=60, metavar="N", help="of generated bugs, a drawn part (%(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time (%(default)s)")
    parser.add_argument("--list", action="store_true", help="name the bugs and plant none")
    arguments = parser.parse_args(argv)
    try:
        chosen = [bug for bug in _bugs(arguments.changed, arguments.most) if fits(bug, arguments.only)]
    except ValueError as error:
        say(f"mutants: {error}")
        return 2
    if not chosen or arguments.jobs < 1:
        say(f"mutants: --only {arguments.only} and --jobs {arguments.jobs}: no bug fits, or no job does the work.")
        return 2
    if arguments.list:
        sys.stdout.write("".join(f"{bug}\n" for bug in chosen))
        return 0
    _import_what_takes_long()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        return hunt(chosen, ROOT, Path(folder), arguments.jobs)


def _bugs(commit: str | None, most: int) -> Sequence[Bug]:
    """Return the kept bugs, or at most `most` of those generated for the changes since a commit."""
    if commit is None:
        return BUGS
    bugs = generated(ROOT, commit)
    for file in sorted({bug.file for bug in bugs if not (ROOT / bug.tests[0]).is_file()}):
        say(f"mutants: {file} has no mirrored test and is left out")
    bugs = [bug for bug in bugs if (ROOT / bug.tests[0]).is_file()]
    if len(bugs) > most:
        say(f"mutants: {most} of {len(bugs)} generated bugs are tried (--most)")
        bugs = random.Random(0).sample(bugs, most)
    return bugs


def fits(bug: Bug, pattern: str) -> bool:
    return any(fnmatch.fnmatch(text, pattern) for text in (bug.file, bug.breaks))


def hunt(bugs: Sequence[Bug], root: Path, folder: Path, jobs: int) -> int:
    """Plant the bugs in copies of `root` below `folder`; return the exit status."""
    copies = [_copy(root, folder / f"copy{number}") for number in range(jobs)]
    started = time.monotonic()
    files = sorted({test for bug in bugs for test in bug.tests})
    status = _wait_all([(_fork(copies[0], files, folder / "sound.log"), SECONDS * len(files))])[0]
    if status != 0:
        say(f"mutants: the tests fail without any bug:\n{_end_of(folder / 'sound.log')}")
        return 2
    survived = 0
    for number, (bug, outcome, seconds) in enumerate(_outcomes(bugs, copies, folder), start=1):
        say(f"{number:3d}/{len(bugs)}  {outcome}  {seconds:5.1f} s  {bug}")
        survived += outcome != CAUGHT
    say(f"mutants: {len(bugs)} bugs, {survived} survived, {time.monotonic() - started:.0f} s")
    return 1 if survived else 0


def _outcomes(bugs: Sequence[Bug], copies: Sequence[Path], folder: Path) -> Iterator[tuple[Bug, str, float]]:
    """Yield each bug with its outcome, in the order in which they end; each copy runs one bug at a time."""
    todo, free = list(bugs), list(copies)
    running: dict[int, tuple[Bug, Path, str, float]] = {}  # process -> its bug, copy, the sound text and its beginning
    while todo or running:
        while todo and free:
            bug, copy = todo.pop(0), free.pop()
            sound = plant(bug, copy)
            running[_fork(copy, bug.tests, folder / f"{copy.name}.log")] = (bug, copy, sound, time.monotonic())
        for process, (bug, copy, sound, began) in list(running.items()):
            seconds = time.monotonic() - began
            status = _status_of(process, seconds > SECONDS)
            if status is None:
                continue
            del running[process]
            (copy / bug.file).write_text(sound, encoding="utf-8")
            free.append(copy)
            if status not in (0, 1, -9):
                raise SystemExit(f"mutants: {bug}: pytest ended with {status}\n{_end_of(folder / f'{copy.name}.log')}")
            yield bug, {0: SURVIVED, 1: CAUGHT, -9: LATE}[status], seconds
        time.sleep(0.05)


def plant(bug: Bug, root: Path) -> str:
    """Change the bug's one line; return the former text of the file.

    Raises:
        ValueError: if the line does not occur exactly once.
    """
    path = root / bug.file
    sound = path.read_text(encoding="utf-8")
    lines = sound.splitlines(keepends=True)
    found = [n for n, line in enumerate(lines) if line.strip() == bug.before and bug.line in (0, n + 1)]
    if len(found) != 1:
        raise ValueError(
            f"{bug}: its line is there {len(found)} times: {bug.before!r}. Correct tests/mutants/bugs.yaml."
        )
    line = lines[found[0]]
    lines[found[0]] = line.replace(bug.before, bug.after)
    path.write_text("".join(lines), encoding="utf-8")
    return sound


def _copy(root: Path, target: Path) -> Path:
    target.mkdir()
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif (root / name).exists():
            shutil.copyfile(root / name, target / name)
    return target


def _import_what_takes_long() -> None:
    """Import only libraries: every child imports our modules again, with the bug in them."""
    import av  # noqa: F401
    import numpy  # noqa: F401
    import open_clip  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import torch
    import torch.nn.parallel

    torch.set_num_threads(1)  # a thread pool would not survive the fork


def _fork(copy: Path, tests: Sequence[str], log: Path) -> int:
    """Fork a child that runs the quick tests in the copy; return its process id."""
    process = os.fork()
    if process:
        return process
    status = 3
    try:
        status = _run_tests(copy, tests, log)
    except BaseException:
        with log.open("a", encoding="utf-8") as out:
            traceback.print_exc(file=out)
    finally:  # whatever happened: the child must never return into its parent's code
        os._exit(status)


def _run_tests(copy: Path, tests: Sequence[str], log: Path) -> int:
    os.chdir(copy)
    with log.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.dont_write_bytecode = True  # a bug of the same second and size must not meet the bytecode of another
    ours = ("ctvr", "tools", "tests")
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
    import pytest

    words = ["-x", "-q", "-m", "not slow and not fault", "-p", "no:cacheprovider", "--rootdir", str(copy)]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins of pytest that a library has imported
    basetemp = tempfile.mkdtemp(prefix="pytest-", dir=copy.parent)
    status = int(pytest.main([*words, "--basetemp", basetemp, *tests]))
    strangers = [
        name
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in ours and not str(getattr(module, "__file__", None) or copy).startswith(str(copy))
    ]
    if strangers:
        sys.stderr.write(f"not of the copy: {strangers[:5]}\n")
        return 4
    shutil.rmtree(basetemp, ignore_errors=True)
    sys.stdout.flush()
    return status


def _status_of(process: int, is_late: bool) -> int | None:
    """Return the exit status of a child, -9 if it was stopped for being late, None while it runs."""
    if is_late:
        os.kill(process, 9)
        os.waitpid(process, 0)
        return -9
    ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _wait_all(children: Sequence[tuple[int, float]]) -> list[int]:
    found: list[int] = []
    for process, seconds in children:
        until = time.monotonic() + seconds
        while (status := _status_of(process, time.monotonic() > until)) is None:
            time.sleep(0.05)
        found.append(status)
    return found


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])


if __name__ == "__main__":
    sys.exit(main())
