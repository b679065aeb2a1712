"""No code reads the text of an error: with every text of ConfigError reversed, the corrected commands are the same."""

import pytest

from ctvr.orchestrator.cli import mistakes
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.errors import ConfigError
from tests.orchestrator.cli.test_mistakes import MISTAKES
from tests.orchestrator.cli.test_refusals import REFUSED
from tests.rewording import reword

COMMANDS = [list(words) for words, _ in MISTAKES] + [line.split() for line in REFUSED]
COMMANDS += [["run", "CLIP4Clip", "shapse-5", "--epochs", "2", "lr=1e-5", "optim.warmpu=0.2", "--presett", "paper"]]


def corrections(monkeypatch, commands) -> list[str]:
    found, corrected = list[str](), mistakes._corrected

    def record(words, wrong):
        found.append(corrected(words, wrong))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(mistakes, "_corrected", record)
        for words in commands:
            main(words)
    return found


@pytest.mark.slow
def test_corrected_commands_do_not_depend_on_the_wording(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    before = corrections(monkeypatch, COMMANDS)
    reword(monkeypatch)
    after = corrections(monkeypatch, COMMANDS)
    assert after == before
    assert sum(bool(each) for each in before) > 20
    text = str(ConfigError("is not a number", "optim.epochs", remedy="Write 2."))
    assert text == "optim.epochs: number a not is. 2. Write", "the texts are reversed"
