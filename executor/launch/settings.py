"""The settings for a Spark session that runs many small Python tasks fast, and those that it must have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distop.errors import InvalidArgument, PreconditionFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

ADAPTIVE = "spark.sql.adaptive.enabled"
CHECKED = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
"""With both, Spark sees that a part of a shuffle which it computes again is not what it was, and computes all
that was made of it again. By default they are on."""

TASK_FAILURES = 4
"""Attempts at a task; Spark's own default, except that ``local[n]`` means once."""


def with_retries(master: str) -> str:
    """``local[2]`` tries a task once; ``local[2,4]`` four times, as clusters do."""
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    found = re.fullmatch(r"local\[\s*(\d+|\*)\s*\]", master)
    return f"local[{found[1]},{TASK_FAILURES}]" if found else master


LEAST = (4, 2)
"""The oldest PySpark that works."""


class SparkTooOld(PreconditionFailed):
    """The PySpark of this program is older than what distop works with."""

    code = "SPARK_TOO_OLD"
    default_hint = "pip install 'pyspark>=4.2,<5', and as new a Spark where the workers are"


def refuse_old() -> None:
    """Raise :class:`SparkTooOld` if PySpark is too old."""
    from pyspark.version import __version__ as version

    if tuple(map(int, re.findall(r"\d+", version)[:2])) < LEAST:
        raise SparkTooOld(f"PySpark {version} is older than {'.'.join(map(str, LEAST))}")


class ShufflesUnchecked(InvalidArgument):
    """The Spark session does not check shuffles that it computes again, under adaptive execution."""

    code = "SHUFFLES_UNCHECKED"
    default_hint = f"leave {' and '.join(CHECKED)} at true, or set {ADAPTIVE} to false"


def refuse_unchecked(session: SparkSession) -> None:
    """Raise :class:`ShufflesUnchecked` if rows of a DataFrame could be lost or doubled in this session;
    :class:`SparkTooOld` if it could not compute them.

    Adaptive execution makes a job of each shuffle. What Spark recomputes between two of these jobs, after it
    lost an executor, it does not report as repeated.
    """
    refuse_old()

    def is_on(name: str) -> bool:
        return (session.conf.get(name) or "").strip().lower() == "true"  # as Spark reads it

    off = [name for name in CHECKED if not is_on(name)]
    if off and is_on(ADAPTIVE):
        raise ShufflesUnchecked(f"the Spark session has {ADAPTIVE}, and not {' and '.join(off)}")
