"""`ctvr completion`: what the Tab key offers is what the parsers take."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator.cli.completion import SHELLS, Names, commands_of, script
from ctvr.orchestrator.cli.main import make_parser
from ctvr.orchestrator.streams.load import BENCHMARKS, RENDERED

NAMES = Names((*EVERY_METHOD, *CONFIGURATIONS), (*RENDERED, *BENCHMARKS), ("released", "no-ffa", "ctvr-table1"))


def offered(tmp_path, *typed: str) -> list[str]:
    """What bash offers behind these words, of which the last is being typed."""
    file = tmp_path / "completion.bash"
    file.write_text(script("bash", make_parser(), NAMES))
    ask = f'source {file}; COMP_WORDS=(ctvr "$@"); COMP_CWORD=$#; _ctvr; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask, "bash", *typed], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_offers_commands_options_and_names(tmp_path):
    (tmp_path / "runs" / "streams").mkdir(parents=True)
    (tmp_path / "runs" / "streams" / "mine.json").write_text("{}")
    assert {"run", "sweep", "streams", "completion"} <= set(offered(tmp_path, ""))
    assert offered(tmp_path, "swe") == ["sweep"]
    assert offered(tmp_path, "run", "--method", "clip4") == ["clip4clip"]
    assert offered(tmp_path, "run", "--method", "lwf", "--stream", "mi") == ["mine"]
    assert set(RENDERED) <= set(offered(tmp_path, "run", "--stream", ""))
    assert offered(tmp_path, "run", "--smoke", "--pre") == ["--preset"]
    assert offered(tmp_path, "run", "--preset", "no-") == ["no-ffa"]
    assert offered(tmp_path, "streams", "ch") == ["check"]
    assert "mine" in offered(tmp_path, "streams", "check", "")
    assert offered(tmp_path, "methods", "zero") == ["zero_shot"]
    assert offered(tmp_path, "completion", "fi") == ["fish"]
    assert offered(tmp_path, "run", "--config", "x") == []  # bash then offers files


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_stands_in_the_script(shell):
    text = script(shell, make_parser(), NAMES)
    for command in commands_of(make_parser(), NAMES):
        assert not command.path or f"'{' '.join(['', *command.path.split()][-2:])}'" in text
        for option in command.options:
            for name in option.names:
                in_fish = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                assert (in_fish if shell == "fish" else name) in text
    assert all(name in text for name in NAMES.methods)
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=text, text=True, check=True)
