"""The process from which Spark forks a runner's Python workers: it has loaded what nearly every job needs.

Spark ends a worker that was idle for a minute. Without this, each new one would load the same modules again
before its first job, which takes longer than most small jobs. Operation types are not among them: loading
them runs user code, which may not survive a fork.
"""

from __future__ import annotations

import gc
import sys
from contextlib import redirect_stdout
from importlib import import_module

from pyspark.daemon import manager

LOADED = (
    "distop.executor.task.task",
    "distop.executor.launch.spark_task",
    "distop.lake.writing.writer",
)


def main() -> None:
    """As ``python -m pyspark.daemon``, with the same arguments."""
    # All modules stay loaded: garbage collection meanwhile takes a sixteenth of the loading time.
    gc.disable()
    # Spark reads from the output the port of the daemon, and nothing else.
    with redirect_stdout(sys.stderr):
        for name in LOADED:
            import_module(name)
    # Collections in workers do not touch, and so do not copy, the shared objects.
    gc.freeze()
    gc.enable()
    manager()


if __name__ == "__main__":
    main()
