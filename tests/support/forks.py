"""Processes that do one thing and are killed on the way: many of them, cheaply.

One process imports everything and speaks to nobody; it forks a child for each task. So a hundred kills take
seconds, and each is the end of a whole process: nothing is flushed, closed or reported.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from distop.commit.contract import default_registry
from distop.commit.execution import execute
from distop.metastore import crashpoints
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import Epoch
from distop.metastore.operations.steplog import CommitStepStore
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import CommitSequence, StepRecord
from distop.metastore.records.record import convert
from support.types.step_worlds import World

FAILED = 70
"""Exit status of a child that raised."""


@dataclass
class Forks:
    """The parent of the children; used as a context manager."""

    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Forks:
        command = [sys.executable, "-c", "from support.forks import serve; serve()"]
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate()

    def run(self, task: str, *arguments: Any, crash: str = "", after_s: float = 0.0) -> int:
        """How a child that does ``task`` ended: 0, or less than 0 if it was killed.

        Parameters
        ----------
        crash:
            A plan of crash points.
        after_s:
            Seconds after which the kernel kills it, wherever it is; 0: it is let live.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode([task, arguments, crash, after_s]) + b"\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert status != FAILED, "the child raised, see above"
        return status


def serve() -> None:
    """Fork a child for each line on standard input; answer how it ended."""
    # What is loaded here need not be loaded by each child.
    import s3fs  # noqa: F401

    default_registry().kind("files.rename")
    gc.collect()
    gc.freeze()  # or else children would copy what they only look at
    for line in sys.stdin.buffer:
        task, arguments, crash, after_s = msgspec.json.decode(line)
        if not (pid := os.fork()):
            _be_child(TASKS[task], arguments, crash, after_s)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _be_child(task: Callable[..., None], arguments: list[Any], crash: str, after_s: float) -> None:
    crashpoints._PLAN = crash
    try:
        # Nobody handles this signal: the kernel ends the process, as SIGKILL would.
        signal.setitimer(signal.ITIMER_REAL, after_s)
        task(*arguments)
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(FAILED)


def write_log(
    endpoint: str, prefix: str, operation: str, epoch: list[Any], uuid: str, notes: list[str]
) -> None:
    """Write the log of an operation as the leader of that epoch: one step for each note."""
    steps = tuple(StepRecord(step="none", argument={"note": note}) for note in notes)

    async def write() -> None:
        client = EtcdClient(EtcdConfig(endpoints=(endpoint,), prefix=prefix))
        keys = client.keyspace.operation(OperationId.parse(operation))
        held = Epoch(epoch[0].encode(), epoch[1])
        store = CommitStepStore(chunk_bytes=500)
        await store.write(client, keys, held, CommitSequence(operation, uuid, steps))

    asyncio.run(write())


def execute_steps(url: str, storage: dict[str, Any], records: list[dict[str, Any]], workers: int) -> None:
    """Execute a sequence as a leader does."""
    context = World(url, storage).context
    steps = convert(records, list[StepRecord])
    sequence = CommitSequence.of(str(context.arg.id), context.arg.uuid, steps)
    execute(sequence, context, check=lambda: None, workers=workers)


TASKS: dict[str, Callable[..., None]] = {"write_log": write_log, "execute_steps": execute_steps}
