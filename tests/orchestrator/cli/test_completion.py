"""`ctvr completion`: the Tab key offers exactly the words that the parsers accept."""

import shutil
import subprocess

import pytest

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator.cli.completion import INSTALL, script
from ctvr.orchestrator.cli.main import make_parser
from ctvr.orchestrator.streams.load import BENCHMARKS, RENDERED

NAMES = ((*EVERY_METHOD, *CONFIGURATIONS), (*RENDERED, *BENCHMARKS), ("released", "no-ffa", "ctvr-table1"))


def offered(tmp_path, *typed: str) -> list[str]:
    """Return the completions that bash offers after these words, of which the last is being typed."""
    file = tmp_path / "completion.bash"
    file.write_text(script("bash", make_parser(), *NAMES))
    ask = f'source {file}; COMP_WORDS=(ctvr "$@"); COMP_CWORD=$#; _shtab_ctvr; printf "%s\\n" "${{COMPREPLY[@]}}"'
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
    (tmp_path / "x.yaml").touch()
    assert offered(tmp_path, "run", "--config", "x") == ["x.yaml"]


@pytest.mark.parametrize("shell", INSTALL)
def test_script_has_commands_options_names_and_streams_of_the_folder(shell):
    text = script(shell, make_parser(), *NAMES)
    for word in ("check-method", "preset", "baselines", "runs/streams", *(name for names in NAMES for name in names)):
        assert word in text
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=text, text=True, check=True)
