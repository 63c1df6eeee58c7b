"""Those who use the tables while there are faults, and the operator who sees to what waits for somebody."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from distop.errors import DistopError, NotFound
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json
from simulate.chance import Chance
from simulate.doors import Doors
from simulate.kinds import ALWAYS, ERRORS, KINDS, METHODS, PUBLISHING
from simulate.loop import Process

Coordinators = Callable[[], list[Process]]
OPEN = (pb.RUNNING, pb.COMMITTING, pb.ABORTING)
LOOK_EVERY_S = 15.0


class Callers:
    """All of them: tasks of the world, which never crash and never wait for long."""

    def __init__(
        self,
        chance: Chance,
        doors: Doors,
        coordinators: Coordinators,
        note: Callable[[str], None],
        promised: Callable[[str], None],
        folder: str,
        tables: list[str],
    ) -> None:
        self._chance, self._doors, self._coordinators = chance, doors, coordinators
        self._note, self._promised, self._folder, self.tables = note, promised, folder, tables
        self._batches = itertools.count(1)
        self._resolved: dict[str, int] = {}

    async def call(self, name: str, request: Any, *, tries: int = 4) -> Any:
        """The answer, or the error; ``None``: nobody knows what became of it."""
        answer: Any = None
        for _ in range(tries):
            if processes := self._coordinators():
                answer = await self._doors.call(self._chance.pick(processes), name, request)
                if not isinstance(answer, DistopError) or not answer.retryable:
                    break
            await asyncio.sleep(self._chance.some(1.0))
        outcome = (
            answer.code if isinstance(answer, DistopError) else "no answer" if answer is None else "done"
        )
        self._note(f"caller: {name.partition('/')[2]} {_names(request)}: {outcome}")
        return answer

    # -- who uses the tables ---------------------------------------------------------------------------

    async def use(self) -> None:
        """Do this and that, until faults stop."""
        for table in self.tables:
            await self._create(table)
        others = [self._enqueue, self._unordered, self._cancel, self._pause, self._drop, self._schedule]
        deeds = [self._start, self._resume]
        deeds += self._chance.rng.choices([self._start, *others], k=self._chance.pick([2, 4, 8]))
        while self._chance.faults:
            await asyncio.sleep(self._chance.some(self._chance.acts_every_s))
            deed = self._chance.pick(deeds)
            await deed(self._chance.pick(self.tables))

    async def _create(self, table: str) -> None:
        location = f"file://{self._folder}/{table}"
        request = pb.CreateTableRequest(
            name=table, location=location, format="files", call_id=self._chance.word()
        )
        await self.call("TableService/CreateTable", request, tries=20)

    def _argument(self, word: str, kind: str) -> dict[str, Any]:
        chance = self._chance
        jobs = chance.pick([0, 1, 2, 2, 3, 9])
        moves = kind in PUBLISHING and chance.pick([True, False])
        argument: dict[str, Any] = {"jobs": jobs, "watermark": moves, "uuid": f"u{word}"}
        if chance.happens(chance.trouble):
            times = chance.pick([1, 3, ALWAYS])
            method, error = chance.pick(METHODS[KINDS[kind]]), chance.pick(ERRORS)
            if method == "cleanup":
                times = min(times, 3)  # it is called until it succeeds
            argument["trouble"] = {"in": method, "error": error, "times": times}
        # Only jobs that failed are described.
        if jobs and (chance.job_fails() or argument.get("trouble", {}).get("in") == "describe_job"):
            argument["fail"] = ["0"]
        return argument

    async def _start(self, table: str) -> None:
        word, kind = self._chance.word(), self._chance.pick(KINDS)
        argument = self._argument(word, kind)
        request = pb.StartOperationRequest(
            table=table,
            type=kind,
            argument_json=to_json(argument, "argument"),
            run=word,
            call_id=word,  # as the SDK has it
            options=pb.OperationOptions(max_failed_partitions=self._chance.pick([0, 1])),
        )
        answer = await self.call("OperationService/StartOperation", request)
        if isinstance(answer, pb.Operation):
            self._promised(answer.name)

    async def _enqueue(self, table: str, *, unordered: bool = False) -> None:
        word = self._chance.word()
        request = pb.EnqueueBatchRequest(
            table=table,
            batch=f"b{next(self._batches):05}",
            type="append",
            argument_json=to_json(self._argument(word, "append"), "argument"),
            call_id=word,
            unordered=unordered,
        )
        await self.call("BacklogService/EnqueueBatch", request)

    async def _unordered(self, table: str) -> None:
        await self._enqueue(table, unordered=True)

    async def _cancel(self, table: str) -> None:
        if operations := await self.operations(table):
            request = pb.CancelOperationRequest(name=self._chance.pick(operations).name)
            await self.call("OperationService/CancelOperation", request)

    async def _pause(self, table: str) -> None:
        if self._chance.happens(0.5):
            await self.call("TableService/PauseTable", pb.PauseTableRequest(name=table))
        elif operations := await self.operations(table):
            request = pb.PauseOperationRequest(name=self._chance.pick(operations).name)
            await self.call("OperationService/PauseOperation", request)

    async def _resume(self, table: str) -> None:
        await self.call("TableService/ResumeTable", pb.ResumeTableRequest(name=table))
        for operation in await self.operations(table):
            await self.call(
                "OperationService/ResumeOperation", pb.ResumeOperationRequest(name=operation.name)
            )

    async def _drop(self, table: str) -> None:
        for operation in await self.operations(table):
            await self.call(
                "OperationService/CancelOperation", pb.CancelOperationRequest(name=operation.name)
            )
        for _ in range(self._chance.pick([1, 1, 3])):
            request = pb.DropTableRequest(name=table, purge=self._chance.pick([True, False]))
            # Some callers lose patience, and ask another coordinator as well.
            callers = range(self._chance.pick([1, 2]))
            drops = [asyncio.ensure_future(self.call("TableService/DropTable", request)) for _ in callers]
            await asyncio.wait(drops, return_when=asyncio.FIRST_COMPLETED)
            await self._create(table)

    async def _schedule(self, table: str) -> None:
        word = self._chance.word()
        request = pb.AddScheduleRequest(
            table=table,
            name="each-minute",
            type="report",
            cron="* * * * *",
            argument_json=to_json({"jobs": 1, "uuid": f"s{word}"}, "argument"),
            call_id=word,
        )
        await self.call("ScheduleService/AddSchedule", request)

    async def operations(self, table: str) -> list[Any]:
        """Those of a table that are not over."""
        request = pb.ListOperationsRequest(table=table, states=OPEN)
        answer = await self.call("OperationService/ListOperations", request)
        return list(answer.operations) if isinstance(answer, pb.ListOperationsResponse) else []

    # -- who sees to what waits for somebody -----------------------------------------------------------

    async def operate(self) -> None:
        """Once faults have stopped: decide whatever waits for a decision, and remove all schedules."""
        while True:
            for table in self.tables:
                await self._see_to(table)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _see_to(self, table: str) -> None:
        for operation in await self.operations(table):
            if operation.HasField("pause") and operation.pause.scope != "table":
                request = pb.ResumeOperationRequest(name=operation.name)
                await self.call("OperationService/ResumeOperation", request)
            if operation.completion.parked:
                times = self._resolved[operation.name] = self._resolved.get(operation.name, 0) + 1
                action = "retry" if times == 1 else "skip" if operation.completion.skippable else "abort"
                resolve = pb.ResolveOperationRequest(
                    name=operation.name, action=action, call_id=self._chance.word()
                )
                await self.call("OperationService/ResolveOperation", resolve)
        answer = await self.call("TableService/GetTable", pb.GetTableRequest(name=table))
        if isinstance(answer, NotFound):
            await self.call("TableService/DropTable", pb.DropTableRequest(name=table))
            await self._create(table)
            return
        if not isinstance(answer, pb.Table):
            return
        if answer.HasField("pause"):
            await self.call("TableService/ResumeTable", pb.ResumeTableRequest(name=table))
        ordering = answer.ordering
        if ordering.HasField("blocked"):
            await self._control(table, "skip", ordering.blocked.batch)
        for failed in ordering.failed:
            await self._control(table, "skip", failed.batch)
        listed = await self.call("ScheduleService/ListSchedules", pb.ListSchedulesRequest(table=table))
        for schedule in getattr(listed, "schedules", ()):
            remove = pb.ControlScheduleRequest(table=table, name=schedule.name, action="remove")
            await self.call("ScheduleService/ControlSchedule", remove)

    async def _control(self, table: str, action: str, batch: str) -> None:
        request = pb.ControlBacklogRequest(
            table=table, action=action, batch=batch, call_id=self._chance.word()
        )
        await self.call("BacklogService/ControlBacklog", request)

    async def probe(self, table: str) -> str:
        """Start one more operation, as a user would, however often that takes; its name."""
        word = self._chance.word()
        argument = {"jobs": 2, "watermark": False, "uuid": f"u{word}"}
        request = pb.StartOperationRequest(
            table=table, type="append", argument_json=to_json(argument, "argument"), run=word
        )
        while True:
            answer = await self.call("OperationService/StartOperation", request)
            if isinstance(answer, pb.Operation):
                self._promised(answer.name)
                return answer.name
            await asyncio.sleep(10.0)


def _names(request: Any) -> str:
    fields = ("table", "name", "type", "batch", "action", "run", "call_id")
    named = (getattr(request, field, "") for field in fields)
    return " ".join(name for name in named if isinstance(name, str) and name)
