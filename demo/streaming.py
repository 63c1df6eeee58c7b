"""Third act: a streaming query copies the table, as Spark users would, and its driver is killed half-way."""

from __future__ import annotations

import sys
from pathlib import Path

from crew import until
from stage import COPY, TABLE, Stage

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


def _batch(stage: Stage) -> int:
    """The last batch that was published; -1: none."""
    marks = stage.client.table(COPY).watermarks()
    return max(
        (int(mark["batch"]) for source, mark in marks.items() if source.startswith(STREAM)), default=-1
    )
