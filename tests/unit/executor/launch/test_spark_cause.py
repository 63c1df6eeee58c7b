"""What is said of a task of Spark that failed."""

from __future__ import annotations

import pytest

from distop.executor.launch.spark_job import _cause

PYTHON = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "task.py", line 7, in run
OSError: [Errno 28] No space left on device
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Caused by: something else
\tat elsewhere"""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (PYTHON, "OSError: [Errno 28] No space left on device"),
        (
            f"An error occurred while calling o9.collect.\n: Job aborted: {PYTHON}",
            "OSError: [Errno 28] No space left on device",
        ),
        (
            "Job aborted: ExecutorLostFailure (1 exited)\nDriver stacktrace:\n\tat x",
            "Job aborted: ExecutorLostFailure (1 exited)",
        ),
        ("ExecutorLostFailure (executor 1 exited)", "ExecutorLostFailure (executor 1 exited)"),
        ("\n\tat x", ""),
    ],
)
def test_the_line_that_says_what_happened_is_kept(message: str, cause: str) -> None:
    assert _cause(message) == cause
