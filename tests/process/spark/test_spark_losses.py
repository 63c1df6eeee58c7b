"""What a launcher says of executors of Spark that were lost, on a cluster in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.repository import TESTS

pytestmark = pytest.mark.spark

SCRIPT = """
import os, signal, sys, time

from pyspark.sql import SparkSession
from distop.executor.launch.spark import SparkLauncher
from distop.executor.launch.spark_job import executors_of
from distop.metastore.etcd.config import EtcdConfig
from support.processes import children

def until(true):
    ends = time.monotonic() + 100
    while not (value := true()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return value

settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
builder = SparkSession.builder.master("local-cluster[2,1,512]")
for name, value in settings.items():
    builder = builder.config(name, value)
with builder.getOrCreate() as session:
    context = session.sparkContext
    jvm = context._jvm.java.lang.ProcessHandle.current().pid()
    launcher = SparkLauncher(EtcdConfig(), session=session)
    until(lambda: executors_of(context) == 2)
    assert launcher.held_up() == ""
    os.kill(until(lambda: children(jvm, b"GrainedExecutorBackend"))[0], signal.SIGKILL)
    print(until(launcher.held_up), flush=True)
    until(lambda: not launcher.held_up())
    print(executors_of(context))
    # What it has released itself is not missed.
    for number in range(3):
        context._jsc.sc().killExecutor(str(number))
    until(lambda: executors_of(context) < 2)
    print(repr(launcher.held_up()))
"""


def test_an_executor_of_spark_that_is_lost_is_missed_until_it_is_replaced() -> None:
    command, environment = [sys.executable, "-c", SCRIPT], {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lost, there, released = done.stdout.splitlines()
    assert lost.startswith("an executor of Spark was lost: ")
    assert there == "2"
    assert released == "''"
