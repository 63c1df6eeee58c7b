"""The ways into a table that know what was written before, as docs/again.md lists them: each writes one row
under an identity, a small number, and can be asked to write it again."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from distop.client import Batch, OperationState
from distop.errors import DistopError
from distop.spark.publication import Publication
from distop.spark.target import WriteTarget
from support.services.whole import HEADER, Whole, error_of
from support.tables.publishing import ROWS, rows
from support.tables.writing import abandon, begin, end, task
from support.waiting import eventually

DONE, WRITTEN, WAITS = "done", "written", "waits"


class Way(ABC):
    """One way into a table, with a table of its own."""

    name: ClassVar[str]
    """The heading of its row in docs/again.md."""
    schema: ClassVar[Sequence[str]] = ("id: long", "kind: string", "day: string")

    def __init__(self, service: Whole, table: str) -> None:
        self.table = table
        self.use(service)

    def use(self, service: Whole) -> None:
        """Use this service from now on."""
        self.service, self.client = service, service.client

    async def create(self) -> None:
        location = str(self.service.folder / "tables" / self.table)
        await self.client.create_table(self.table, location, options={"schema": self.schema})

    async def write(self, number: int, row: int | None = None) -> str:
        """Write the row ``number``, or the one that is its content now.

        Returns :data:`DONE` if there was nothing to do, :data:`WAITS`, the code of an error, or
        :data:`WRITTEN`.
        """
        return await self._outcome(self._write, number, number if row is None else row)

    async def otherwise(self, number: int, row: int) -> str:
        """What docs/again.md says for those who want something else; the outcome as of :meth:`write`."""
        return await self._outcome(self._otherwise, number, row)

    @abstractmethod
    async def fail(self, number: int) -> None:
        """Try to write, and fail."""

    @abstractmethod
    async def _write(self, number: int, row: int) -> str:
        """An outcome that is known from the answer; or nothing."""

    async def _otherwise(self, number: int, row: int) -> str:
        raise NotImplementedError

    @property
    def has_other(self) -> bool:
        """Whether there is something else to want."""
        return type(self)._otherwise is not Way._otherwise

    async def _outcome(self, call: Callable[[int, int], Awaitable[str]], number: int, row: int) -> str:
        before = await self.snapshots()
        try:
            outcome = await call(number, row)
        except DistopError as error:
            return error.code
        return outcome or (WRITTEN if await self.snapshots() != before else DONE)

    async def snapshots(self) -> list[str]:
        """The ids of the snapshots in the table's history, the oldest first."""
        listed = [snapshot async for snapshot in self.client.table(self.table).snapshots()]
        return [str(snapshot.snapshot_id) for snapshot in reversed(listed) if snapshot.in_history]

    async def roll_back(self, snapshot: str) -> None:
        await self.service.succeeds("rollback", self.table, snapshot=snapshot)

    async def ids(self) -> list[int]:
        return await asyncio.to_thread(self.service.ids, self.table)

    def source(self, number: int | str, row: int) -> str:
        return str(self.service.source(f"{self.name}-{number}", row, 1))

    def bad(self, number: int | str) -> str:
        """The path of a source of which one line cannot be read as a row."""
        source = Path(self.source(number, 0))
        (source / "1.csv").write_text(f"{HEADER}nothing,k0,2013-01-01\n")
        return str(source)

    async def ingest(self, path: str, **more: Any) -> str:
        """The code of its error; empty if it succeeds."""
        options = {name: more.pop(name) for name in ("run", "again") if name in more}
        started = await self.client.start(self.table, "ingest", {"paths": [path], **more}, **options)
        ended = await started.wait(timeout_s=90)
        return "" if ended.state is OperationState.SUCCEEDED else error_of(ended).code


class Requests(Way):
    """An ingest with a named run."""

    name = "request"

    async def fail(self, number: int) -> None:
        assert await self.ingest(self.bad(number), run=f"r{number}")

    async def _write(self, number: int, row: int) -> str:
        return await self.ingest(self.source(number, row), run=f"r{number}")

    async def _otherwise(self, number: int, row: int) -> str:
        return await self.ingest(self.source(number, row), run=f"r{number}", again=True)


class Batches(Way):
    """A batch of the backlog."""

    name = "batch"

    async def fail(self, number: int) -> None:
        await self._enqueue(number, self.bad(number))
        await eventually(self._is_blocked)

    async def _write(self, number: int, row: int) -> str:
        became = await self._enqueue(number, self.source(number, row))
        if became == "already applied":
            return DONE
        if became == "already queued" and not await self._is_blocked():
            return WAITS
        if became == "already queued":
            await self.client.table(self.table).retry_batch(str(number))
        await eventually(self._drained)
        return ""

    async def _otherwise(self, number: int, row: int) -> str:
        source = self.source(number, row)
        if await self._drained():
            await self.client.table(self.table).replace_batch(str(number), {"paths": [source]})
        else:
            await self.client.table(self.table).open_gate()
        await eventually(self._drained)
        return ""

    async def roll_back(self, snapshot: str) -> None:
        facts = await self.service.succeeds("rollback", self.table, snapshot=snapshot)

        async def put_back() -> bool:
            return {batch.name for batch in await self._backlog()} >= set(facts.get("undoneBatches", ()))

        await eventually(put_back)

    async def _enqueue(self, number: int, path: str) -> str:
        queued = await self.client.table(self.table).enqueue(str(number), "ingest", {"paths": [path]})
        return queued.became

    async def _backlog(self) -> list[Batch]:
        return [batch async for batch in self.client.table(self.table).backlog()]

    async def _drained(self) -> bool:
        return not await self._backlog()

    async def _is_blocked(self) -> bool:
        return (await self.client.table(self.table).ordering()).blocked is not None


class Files(Way):
    """Files, by their watermark."""

    name = "file watermark"

    async def fail(self, number: int) -> None:
        assert await self.ingest(self.bad(number))

    async def _write(self, number: int, row: int) -> str:
        return await self.ingest(self.source(number, row))

    async def _otherwise(self, number: int, row: int) -> str:
        return await self.ingest(self.source(number, row), reingest=True)


class Streams(Way):
    """Batches of a streaming query of Spark: the one with the number 1 is its batch 0."""

    name = "stream"
    schema = ("id: long", "kind: string")

    async def fail(self, number: int) -> None:
        def give_up() -> bool:
            return abandon(self.service.address, self._batch(begin(self.service.address, self.table), number))

        assert await asyncio.to_thread(give_up)

    async def _write(self, number: int, row: int) -> str:
        def published() -> bool:
            target = begin(self.service.address, self.table)
            batch = self._batch(target, number)
            return end(self.service.address, batch, [task(target, [rows(row, 1)])]).is_own

        return "" if await asyncio.to_thread(published) else DONE

    def _batch(self, target: WriteTarget, number: int) -> Publication:
        batch = str(number - 1)
        return Publication(target=target, run=f"q.{batch}", source="stream:q", batch=batch)


class Ticks(Way):
    """A time of a schedule, which is made up for: the one of so many days ago."""

    name = "schedule tick"

    async def create(self) -> None:
        await super().create()
        paths = [str(self.service.folder / "src" / (self.name + "-{{ tick | date }}"))]
        cron = f"0 {self._hour} * * *"
        await self.client.table(self.table).add_schedule("daily", "ingest", {"paths": paths}, cron=cron)

    async def fail(self, number: int) -> None:
        self.bad(f"{self._tick(number):%Y-%m-%d}")
        assert await self._run(number)

    async def _write(self, number: int, row: int) -> str:
        self.source(f"{self._tick(number):%Y-%m-%d}", row)
        return await self._run(number)

    async def _run(self, number: int) -> str:
        operation = await self.client.table(self.table).run_schedule("daily", self._tick(number))
        ended = await self.client.operation(operation.name).wait(timeout_s=90)
        return "" if ended.state is OperationState.SUCCEEDED else error_of(ended).code

    @cached_property
    def _hour(self) -> int:
        """An hour that does not come while a test runs."""
        return (datetime.now(UTC).hour + 12) % 24

    def _tick(self, number: int) -> datetime:
        today = datetime.now(UTC).replace(hour=self._hour, minute=0, second=0, microsecond=0)
        return today - timedelta(days=number)


class Commits(Way):
    """A commit of another program that names a run."""

    name = "other program"

    async def create(self) -> None:
        def created() -> None:
            location = str(self.service.folder / "tables" / self.table)
            self.service.catalog().create_table(f"default.{self.table}", ROWS, location)

        await asyncio.to_thread(created)

    async def fail(self, number: int) -> None:
        def begun() -> None:
            with suppress(KeyboardInterrupt), self.service.table(self.table).transaction() as transaction:
                transaction.append(self._rows(number), snapshot_properties=self._id(str(number)))
                raise KeyboardInterrupt

        await asyncio.to_thread(begun)

    async def _write(self, number: int, row: int) -> str:
        return await self._append(str(number), row)

    async def _otherwise(self, number: int, row: int) -> str:
        return await self._append(f"{number}-again", row)

    async def _append(self, run: str, row: int) -> str:
        def appended() -> None:
            properties = self._id(run)
            self.service.table(self.table).append(self._rows(row), snapshot_properties=properties)

        await asyncio.to_thread(appended)
        return ""

    def _rows(self, row: int) -> pa.Table:
        return pa.Table.from_batches([rows(row, 1)])

    def _id(self, run: str) -> dict[str, str]:
        return {"distop.run": run}


NAMES = tuple(way.name for way in (Requests, Batches, Files, Streams, Ticks, Commits))


def ways_into(service: Whole) -> list[Way]:
    """All ways, in the order of :data:`NAMES`."""
    first = Requests(service, "t1"), Batches(service, "t2"), Files(service, "t3")
    return [*first, Streams(service, "t4"), Ticks(service, "t5"), Commits(service, "t6")]
