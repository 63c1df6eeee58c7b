"""A table that nothing was published to."""

from pathlib import Path

import pytest

from support.tables.publishing import Table, new_table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Not partitioned."""
    return new_table(tmp_path)
