"""The processes of a demo: started, found by pid, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from distop.cli.dev import ServiceEnded
from distop.errors import DeadlineExceeded

T = TypeVar("T")

AT_ONCE_S = 0.02
"""How often to look for what lasts a moment, or is measured."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SHORT_SPARK = {"SPARK_LAUNCHER_OPTS": QUICK_JAVA, "SPARK_SUBMIT_OPTS": QUICK_JAVA}
"""Five JVMs run for a minute each: starting soon is worth more to them than running fast later. They use the
quick one of Java's compilers."""

COMPILED_SPARK = Path(sys.prefix) / "spark"
if COMPILED_SPARK.is_dir():  # by link_spark in deploy/setup.sh: Python workers find Spark compiled
    SHORT_SPARK["SPARK_HOME"] = str(COMPILED_SPARK)


def until(
    condition: Callable[[], T | None], label: str, timeout_s: float = 60.0, *, every_s: float = 0.25
) -> T:
    """Wait until ``condition`` gives a result, and return it; ``label`` is in the error's message.

    Looking more often than needed takes processors from the services. Raises :class:`DeadlineExceeded`."""
    deadline = time.monotonic() + timeout_s
    while (result := condition()) is None:
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"the demo waited {timeout_s:.0f} s in vain for {label}")
        time.sleep(every_s)
    return result


class Crew:
    """Coordinators and executors of one demo run, each with a log of its own below ``folder``.

    They end with the process that has started them.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._env = SHORT_SPARK | environment
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._names: dict[int, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, *arguments: str) -> int:
        """Start the service ``distop <arguments>``; its pid."""
        command = [sys.executable, "-P", "-m", "distop.cli", *arguments]
        return self.run(name, [*command, "--end-with-parent", str(os.getpid())])

    def run(self, name: str, command: list[str]) -> int:
        """Start any command; its pid."""
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        self._processes[process.pid] = process
        self._names[process.pid] = name
        return process.pid

    def check(self) -> None:
        """Raises :class:`ServiceEnded` when one has ended that nobody has killed."""
        for pid, process in self._processes.items():
            if process.poll() is not None:
                log = self._folder / f"{self._names[pid]}.log"
                raise ServiceEnded(
                    f"{self._names[pid]} has ended with status {process.returncode}", hint=f"its log is {log}"
                )

    def kill(self, pid: int) -> None:
        """kill -9, as a crash would; the children of a runner (Spark) die of it by themselves."""
        process = self._processes.pop(pid)
        os.kill(pid, signal.SIGKILL)
        process.wait()

    def stop_all(self) -> None:
        """Ask all that are left to stop, then make sure."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
