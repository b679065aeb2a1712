"""A table of a few videos, which every script embeds."""

from pathlib import Path

import pytest

from tests.orchestrator.exporters.running import write_table


@pytest.fixture(scope="session")
def table(few: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the table of the small stream and the folder of its videos."""
    file = tmp_path_factory.mktemp("table") / "my.csv"
    return file, write_table(few, file)
