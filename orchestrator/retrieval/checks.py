"""Checks of a query, which need no model."""

from __future__ import annotations

from collections.abc import Sequence

from ctvr.orchestrator.errors import ConfigError


def check_query(texts: Sequence[str], k: int = 1) -> None:
    """Refuse a query that cannot have results.

    Raises:
        ConfigError: for an empty text, or k < 1.
    """
    if not texts or not all(text.strip() for text in texts):
        raise ConfigError("the text is empty. Describe a video, such as 'a dog runs along a beach'.", "search")
    check_count(k)


def check_count(k: int) -> None:
    """Refuse a number of videos below 1.

    Raises:
        ConfigError: for k < 1.
    """
    if k < 1:
        raise ConfigError(f"k counts videos and must be >= 1, got {k}", "search", remedy="Use -k 10.")
