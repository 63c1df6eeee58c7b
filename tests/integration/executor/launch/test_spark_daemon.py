"""The process that Python workers of Spark are forked from, spoken to as Spark does."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path


def number(data: bytes) -> int:
    return int(struct.unpack("!i", data)[0])


def test_a_worker_has_loaded_what_jobs_need_before_its_first_task() -> None:
    command = [sys.executable, "-m", "distop.executor.launch.spark_daemon", "pyspark.worker"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON_UNIX_DOMAIN_ENABLED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        # What is said first, and all that is said: where it listens.
        with socket.create_connection(("127.0.0.1", number(daemon.stdout.read(4))), 60) as asking:
            worker = number(asking.recv(4, socket.MSG_WAITALL))
            assert worker != daemon.pid
            assert "arrow_dataset" in Path(f"/proc/{worker}/maps").read_text()
        daemon.stdin.close()
        daemon.wait(60)
        assert daemon.stdout.read() == b""
