"""``build_index`` as it is, with a note of every data file that it opens."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distop.lake.index.publish import Build
from distop.operations import JobContext
from distop.spark_jobs.index import job as index_job
from distop.spark_jobs.index.operation import BuildIndex

FOLDER = "DISTOP_TEST_OPENED"
"""Environment variable: where ``opened`` is written."""
HOLD_AT = "DISTOP_TEST_HOLD_AT"
"""Environment variable: the file, by its place in the order of opening, at which its process hangs."""

_open = index_job.open_data_file


def opened(folder: Path) -> list[str]:
    """The data files that were opened, in this order."""
    noted = folder / "opened"
    return noted.read_text().splitlines() if noted.exists() else []


def _noted(build: Build, path: str) -> Any:
    folder = Path(os.environ[FOLDER])
    with (folder / "opened").open("a") as notes:
        notes.write(path + "\n")
    while len(opened(folder)) == int(os.environ[HOLD_AT]):
        time.sleep(1)
    return _open(build, path)


class Noted(BuildIndex):
    """Wins over the installed type where ``DISTOP_OPERATIONS`` names it."""

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        index_job.open_data_file = _noted
        return super().run_job(job)
