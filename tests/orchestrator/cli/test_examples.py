"""Each command has two examples that it accepts."""

import argparse
import shlex
from collections.abc import Iterator

import pytest

from ctvr.orchestrator.cli.examples import EXAMPLES
from ctvr.orchestrator.cli.main import make_parser


def commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    for part in parser._actions:
        for choice in part.choices.values() if isinstance(part, argparse._SubParsersAction) else ():
            yield choice.prog.removeprefix("ctvr ")
            yield from commands(choice)


def test_each_command_has_two_examples_in_its_help(capsys):
    assert {*commands(make_parser())} == {*EXAMPLES}
    for command, examples in EXAMPLES.items():
        with pytest.raises(SystemExit):
            make_parser().parse_args([*command.split(), "--help"])
        shown = capsys.readouterr().out.splitlines()
        assert [f"  ctvr {command} {words}".rstrip() for words in examples] == shown[-2:]


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_examples_of_a_command_parse(command):
    for words in EXAMPLES[command]:
        given = make_parser().parse_args([*command.split(), *shlex.split(words)])
        assert given.command == command.split()[0]
