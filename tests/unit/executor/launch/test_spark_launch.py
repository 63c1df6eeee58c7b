"""How jobs are packed into tasks of Spark, which master they get, and what is said of one that failed."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.executor.launch.launch import JOBS_PER_SMALL_TASK, TASKS_PER_SLOT, pack
from distop.executor.launch.settings import with_retries
from distop.executor.launch.spark import master_away
from distop.executor.launch.spark_job import _cause
from distop.metastore.etcd.embedded import free_port


@given(jobs=st.integers(0, 5000), slots=st.integers(1, 64), small=st.booleans())
def test_every_job_is_in_one_task_in_order_and_tasks_are_even(jobs: int, slots: int, small: bool) -> None:
    names = [str(n) for n in range(jobs)]
    packs = pack(names, slots=slots, small=small)
    assert [name for one in packs for name in one] == names
    sizes = {len(one) for one in packs}
    assert 0 not in sizes
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(packs) <= (slots if small else slots * TASKS_PER_SLOT)


def test_big_jobs_have_a_task_each() -> None:
    assert len(pack(["x"] * 300, slots=2, small=False)) == 300


def test_small_jobs_fill_tasks_before_slots() -> None:
    assert len(pack(["x"] * JOBS_PER_SMALL_TASK, slots=8, small=True)) == 1
    assert len(pack(["x"] * (JOBS_PER_SMALL_TASK + 1), slots=8, small=True)) == 2


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_local_masters_try_tasks_again_as_clusters_do(given: str, used: str) -> None:
    assert with_retries(given) == used


def test_a_master_that_does_not_answer_is_missed() -> None:
    away = f"127.0.0.1:{free_port()}"
    assert away in master_away(f"spark://{away}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert master_away(f"spark://{away},127.0.0.1:{server.getsockname()[1]}") == ""


@pytest.mark.parametrize(
    "master", ["", "local[*]", "yarn", "k8s://https://127.0.0.1:1", "local-cluster[1,1,512]"]
)
def test_other_clusters_have_no_such_master(master: str) -> None:
    assert master_away(master) == ""


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
