"""A user's Spark program, started when it is first needed, and again whenever it was killed."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

START = "answer "
LINE_BYTES = 1 << 20


class SparkWriter:
    """The process of :mod:`chaos.spark_writer`, restarted when it was killed."""

    def __init__(self, arguments: list[str], env: dict[str, str], log: Path) -> None:
        self._command = [sys.executable, "-m", "chaos.spark_writer", *arguments]
        self._env, self._log = env, log
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def write(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """What it answers; ``None`` if it ends before that."""
        async with self._turn:
            if self._process is None or self._process.returncode is not None:
                await self._start()
            assert self._process is not None
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(json.dumps(asked).encode() + b"\n")
                await self._process.stdin.drain()
            while line := (await self._process.stdout.readline()).decode():
                if line.startswith(START):
                    answer: dict[str, Any] = json.loads(line.removeprefix(START))
                    return answer
            await self.stop()
            return None

    async def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES,
                start_new_session=True,
            )

    async def stop(self) -> None:
        """With the JVM and the workers that it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
