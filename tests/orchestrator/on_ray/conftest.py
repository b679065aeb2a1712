"""The tests of this room start Ray in their own process, which opens no film: FFmpeg and Ray end badly together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import av
import pytest


@pytest.fixture(autouse=True, scope="package")
def _opens_no_film() -> Iterator[None]:
    def refuse(*words: object, **named: object) -> NoReturn:
        raise AssertionError("FFmpeg was asked to open a film beside Ray. Give it a child: tests/apart.py")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(av, "open", refuse)
        yield
