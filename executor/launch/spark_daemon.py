"""The process that Spark forks a runner's Python workers from: it has loaded what nearly every job needs.

Spark ends a worker that had nothing to do for a minute. Without this, each new one would load the same
modules again before its first job, which takes longer than most small jobs do. Types of operations are not
among them: what they do when they are loaded is their own business, and may not survive a fork.
"""

from __future__ import annotations

import gc
import sys
from contextlib import redirect_stdout
from importlib import import_module

LOADED = (
    "distop.executor.task.frame_task",
    "distop.executor.launch.spark_task",
    "distop.commit.writing.writer",
)


def main() -> None:
    """As ``python -m pyspark.daemon``, with the same arguments."""
    from pyspark.daemon import manager

    # All of it stays: to look for garbage in the meantime takes a sixteenth of what loading does.
    gc.disable()
    # Spark reads from the output where the daemon listens, and nothing else.
    with redirect_stdout(sys.stderr):
        for name in LOADED:
            import_module(name)
    # Collections in workers do not touch, and so do not copy, what all of them share.
    gc.freeze()
    gc.enable()
    manager()


if __name__ == "__main__":
    main()
