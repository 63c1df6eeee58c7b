"""How jobs are packed into tasks of Spark, which masters and sessions work, and what is said of failures."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pyspark.version
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.errors import LaunchFailed
from distop.executor.launch.launch import JOBS_PER_SMALL_TASK, TASKS_PER_SLOT, pack
from distop.executor.launch.settings import (
    ADAPTIVE,
    CHECKED,
    LEAST,
    ShufflesUnchecked,
    SparkTooOld,
    refuse_unchecked,
    refuse_unusable,
    with_retries,
)
from distop.executor.launch.spark import SparkFrame, _ran_twice, master_away
from distop.executor.launch.spark_job import _cause
from distop.executor.launch.spark_task import SparkTask
from distop.metastore.etcd.embedded import free_port
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import encode
from distop.spark import register
from support.repository import ROOT


def test_what_a_job_logs_in_a_worker_of_spark_goes_to_its_stderr() -> None:
    """From info on, in a process where nobody has set up a log."""
    arg = OperationArg(table="t", type="hooked", instance=1, uuid="u")
    task = SparkTask(encode(arg), 1, {}, "support.types.probes:Hooked", {})
    program = (
        "import logging, pickle, sys; pickle.load(sys.stdin.buffer).begin();"
        "logging.getLogger('support.types').info('a line of a job');"
        "logging.getLogger('some_library').info('not asked for')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(task),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    assert done.stderr.decode().rstrip().endswith(" INFO support.types a line of a job")


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
def test_only_a_standalone_master_can_be_missing(master: str) -> None:
    assert master_away(master) == ""


def session_with(**settings: str) -> Any:
    """A session with Spark's defaults, apart from these."""
    return SimpleNamespace(conf={ADAPTIVE: "true", **dict.fromkeys(CHECKED, "true"), **settings})


@pytest.mark.parametrize("off", [CHECKED, CHECKED[:1], CHECKED[1:]])
def test_a_session_without_checksums_of_shuffles_is_refused_under_adaptive_execution(
    off: tuple[str, ...],
) -> None:
    """P2, H5: what Spark recomputes between two of its jobs is not reported as repeated."""
    unchecked = dict.fromkeys(off, "false")
    with pytest.raises(ShufflesUnchecked) as refused:
        refuse_unchecked(session_with(**unchecked))
    assert refused.value.code == "SHUFFLES_UNCHECKED"
    assert all(name in refused.value.message for name in off)
    assert all(name in refused.value.hint for name in (ADAPTIVE, *CHECKED))
    refuse_unchecked(session_with())
    refuse_unchecked(session_with(**unchecked, **{ADAPTIVE: "false"}))


def test_settings_are_switched_on_in_any_spelling_that_spark_reads() -> None:
    """P2: in any case."""
    with pytest.raises(ShufflesUnchecked):
        refuse_unchecked(session_with(**{CHECKED[0]: "False", ADAPTIVE: " True"}))
    refuse_unchecked(session_with(**dict.fromkeys(CHECKED, "TRUE")))


@pytest.mark.parametrize("version", ["4.0.1", "4.1.4", "4.1.0.dev1", "3.5.9"])
def test_spark_that_is_too_old_is_refused_before_anything_is_done_with_it(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no ``to_arrow_type(timezone=)``, and its checksums of shuffles are off."""
    monkeypatch.setattr(pyspark.version, "__version__", version)
    refusals: list[Callable[[], None]] = [
        lambda: refuse_unusable("local", {}, {}),
        lambda: refuse_unchecked(session_with()),
        lambda: register(session_with()),
    ]
    for refuse in refusals:
        with pytest.raises(SparkTooOld, match=f"{version} is older than 4.2") as refused:
            refuse()
        assert refused.value.code == "SPARK_TOO_OLD"


@pytest.mark.parametrize("version", ["4.2.0", "4.10.0", "5.0.0.dev0"])
def test_newer_versions_of_spark_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark.version, "__version__", version)
    refuse_unchecked(session_with())


def test_the_oldest_version_of_spark_is_that_of_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"pyspark>={LEAST[0]}.{LEAST[1]},<5" in extras["spark"]


class Stage:
    """What Spark says of a stage, as far as it matters here."""

    def __init__(self, rdds: str, *, ran: bool = True, wrote: int = 0) -> None:
        self.rdds, self.ran, self.wrote = rdds, ran, wrote

    def submissionTime(self) -> Any:
        return SimpleNamespace(isDefined=lambda: self.ran)

    def rddIds(self) -> Any:
        return SimpleNamespace(mkString=lambda between: between.join(self.rdds))

    def shuffleWriteBytes(self) -> int:
        return self.wrote


@pytest.mark.parametrize(
    ("stages", "twice"),
    [
        ([Stage("43", wrote=9), Stage("34", ran=False), Stage("5", wrote=9), Stage("6")], False),
        ([Stage("43", wrote=9), Stage("34", wrote=2), Stage("6")], True),
        ([Stage("43", wrote=9), Stage("34"), Stage("6")], True),
        ([Stage("43"), Stage("43"), Stage("43", ran=False)], False),
    ],
    ids=["skipped", "computed again", "computed again and empty", "results of jobs that look at some rows"],
)
def test_a_part_of_a_shuffle_that_was_computed_again_for_another_job_is_seen(
    stages: list[Stage], twice: bool
) -> None:
    """P2: no attempt at a stage was repeated."""
    assert _ran_twice(stages) is twice


class Spark:
    """Its state of one job, with stages that it may forget; also a launch that looks at it."""

    _name = "launch"

    def __init__(self, **stages: Any) -> None:
        self.stages = stages
        self._known: dict[str, Any] = {}
        tracker = SimpleNamespace(
            getJobIdsForGroup=lambda name: [1],
            getJobInfo=lambda job: SimpleNamespace(stageIds=list(self.stages)),
            getStageInfo=self.stages.get,
        )
        java = SimpleNamespace(statusStore=lambda: SimpleNamespace(lastStageAttempt=self.stages.get))
        self._context = SimpleNamespace(statusTracker=lambda: tracker, _jsc=SimpleNamespace(sc=lambda: java))

    def look(self) -> dict[Any, Any]:
        return SparkFrame._look(cast("Any", self))


@pytest.mark.parametrize("status", ["PENDING", "ACTIVE", "COMPLETE", "SKIPPED"])
def test_a_stage_that_spark_forgets_must_have_been_seen_to_end(status: str) -> None:
    """P2: on a busy executor it is soon forgotten, and whether it was repeated must be known."""
    stage = SimpleNamespace(status=lambda: status)
    spark = Spark(one=stage)
    assert spark.look() == {"one": stage}
    spark.stages["one"] = None
    if status in ("PENDING", "ACTIVE"):
        with pytest.raises(LaunchFailed, match="forgotten"):
            spark.look()
    else:
        assert spark.look() == {"one": stage}
    with pytest.raises(LaunchFailed, match="forgotten"):
        Spark(one=None).look()


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
