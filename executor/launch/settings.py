"""The settings for a Spark session that runs many small Python tasks fast."""

from __future__ import annotations

import re

SETTINGS = {
    # Without it every Python task waits 40 ms for Nagle's algorithm and delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    # By default it is Java's temporary folder: on YARN that of a container, too long for a socket's path.
    "spark.python.unix.domain.socket.dir": "/tmp",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Operations share the slots instead of queueing behind the first.
    "spark.scheduler.mode": "FAIR",
    # Otherwise queries refuse columns of times of day.
    "spark.sql.timeType.enabled": "true",
    # Workers are forked from a process that has loaded what jobs need.
    "spark.python.daemon.module": "distop.executor.launch.spark_daemon",
}
"""Settings for many small Python tasks. The rest is Spark's default."""

REAPED = {
    # A task checks between rows whether it was cancelled, and one row can take any time. The worker of one
    # that has not ended by then is killed, unless it is the driver itself (`local`).
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.killTimeout": "60s",
    "spark.task.reaper.threadDump": "false",
}
"""How a session of ours ends tasks that do not end themselves."""

TASK_FAILURES = 4
"""Attempts at a task; Spark's own default, except that ``local[n]`` means once."""


def with_retries(master: str) -> str:
    """``local[2]`` tries a task once; ``local[2,4]`` four times, as clusters do."""
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    found = re.fullmatch(r"local\[\s*(\d+|\*)\s*\]", master)
    return f"local[{found[1]},{TASK_FAILURES}]" if found else master
