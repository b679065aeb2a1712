"""A word of another tool or of an earlier version is refused with our command, which exists."""

import pytest

from ctvr.orchestrator.cli.examples import EXAMPLES
from ctvr.orchestrator.cli.main import make_parser
from ctvr.orchestrator.cli.other_words import OTHER_WORDS
from tests.refusing import refuses


@pytest.mark.parametrize("words", OTHER_WORDS)
def test_another_word_is_refused_with_our_command(words):
    meant = OTHER_WORDS[words]
    command = " ".join(word for word in meant.split() if not word.startswith("-"))
    assert not command or command in EXAMPLES
    with refuses() as caught:
        make_parser().parse_args(words.split())
    assert str(caught.value).endswith(f"Run: ctvr {meant}")
