"""A table to ingest into. A module may define its own ``ingesting`` in place of this one."""

from pathlib import Path

import pytest

from support.sources.ingesting import Ingesting


@pytest.fixture
def ingesting(tmp_path: Path) -> Ingesting:
    return Ingesting(tmp_path)
