"""Spark with Iceberg's own writer, for benchmarks: the one that ``make conformance`` puts by.

Iceberg's runtime is there for that Spark and not for newer ones, so it runs in a process of its own
(``spark_sql.py``), and gets SQL statements on standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/conformance"))

import engines

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class NativeSpark:
    """A session with two cores, whose catalog ``distop`` is the one that is served at ``url``."""

    def __init__(self, url: str, log: Path) -> None:
        self._log = log
        # Not that of another Spark, whose jars would be taken.
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))
        }
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(engines.python_of("spark")), str(HERE / "spark_sql.py"), url, engines.SPARK_RUNTIME],
                env={**env, "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    @staticmethod
    def missing() -> str:
        """Why it cannot run here; empty where it can."""
        if engines.python_of("spark"):
            return ""
        return "there is no Spark with Iceberg's runtime: make conformance ARGS='fetch spark' puts one by"

    def sql(self, statement: str) -> list[list[Any]]:
        """The rows that a statement gives."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{statement}:\n{self._log.read_text()[-3000:]}")
        rows: list[list[Any]] = json.loads(line)
        return rows

    def timed(self, statement: str) -> float:
        """Seconds that a statement takes."""
        began = time.perf_counter()
        self.sql(statement)
        return time.perf_counter() - began

    def __enter__(self) -> NativeSpark:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # it ends at the end of its input
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
