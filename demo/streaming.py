"""Third act: a streaming query copies the table, as Spark users would, and its driver is killed half-way."""

from __future__ import annotations

import sys
from pathlib import Path

from flights import KEY

from distop.cli.demo.crew import until
from distop.cli.demo.proof import Check
from distop.cli.demo.stage import TABLE, Stage

COPY = "flights_copy"
SCRIPT = Path(__file__).parent / "stream.py"
STREAM = "stream:"
"""What the sources of streams begin with, in watermarks."""


def stream(stage: Stage, rows: int) -> None:
    """Stream all rows of the table into another one, with two drivers."""
    command = [sys.executable, str(SCRIPT), TABLE, COPY, str(stage.folder / "checkpoint")]
    stage.client.create_table(COPY, str(stage.folder / "copy"))
    driver = stage.crew.run("stream", command)
    before = until(
        lambda: _batch(stage) if _batch(stage) >= 1 else None, "the second batch of the stream", 120
    )
    stage.crew.kill(driver)
    copied = stage.rows(COPY)
    stage.crew.run("stream", command)
    until(lambda: stage.rows(COPY) >= rows or None, "the end of the stream", 120)
    stage.say(
        f"streaming query into {COPY}: driver killed -9 at batch {before}, {copied:,} rows; "
        f"started again: {stage.rows(COPY):,} rows after batch {_batch(stage)}"
    )


def copied(stage: Stage, rows: int) -> Check:
    """Whether each row is in the copy once."""
    rows_of_copy = stage.catalog.load_table(f"default.{COPY}").scan(selected_fields=KEY).to_arrow()
    different = rows_of_copy.group_by(list(KEY)).aggregate([]).num_rows
    whole = different == rows_of_copy.num_rows == rows
    return "rows in its copy, the stream's", whole, f"{rows_of_copy.num_rows:,}, {different:,} different"


def _batch(stage: Stage) -> int:
    """The last batch that was published; -1: none."""
    marks = stage.client.table(COPY).watermarks()
    return max(
        (int(mark["batch"]) for source, mark in marks.items() if source.startswith(STREAM)), default=-1
    )
