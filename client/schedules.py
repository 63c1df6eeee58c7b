"""Schedules of a table, and the calls on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from distop.client.calls import NamedCalls
from distop.client.handles import AsyncOperationHandle
from distop.client.model import Model
from distop.client.operations import OperationError, Pause, operation_options
from distop.proto.json_text import to_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule(Model):
    """A schedule: it starts operations at times, or on a condition."""

    table: str
    name: str
    type: str = ""
    object: str = ""
    argument: dict[str, Any] = field(default_factory=dict)
    cron: str = ""
    """Five fields; empty: it has only a condition."""
    timezone: str = ""
    """Of these times and of templates; empty: UTC."""
    when: str = ""
    """The condition, such as ``small_files > 200``."""
    added_by: str = ""
    added_at: datetime | None = None
    pause: Pause | None = None
    """Who has paused it."""
    next_at: datetime | None = None
    """The next start; ``None``: paused, or on a condition."""
    last_at: datetime | None = None
    """The last tick that was started or skipped."""
    started: int = 0
    """How many operations it has started."""
    operation: str = ""
    """The last of them."""
    skipped: int = 0
    """How many of its ticks were skipped."""
    skip: OperationError | None = None
    """Why the last of them was skipped."""
    skipped_at: datetime | None = None


class ScheduleCalls(NamedCalls):
    """The calls on the schedules of a table."""

    async def add_schedule(
        self,
        name: str,
        type: str,
        argument: Mapping[str, Any] | None = None,
        *,
        cron: str = "",
        timezone: str = "",
        when: str = "",
        object: str = "",
        deadline_s: float | None = None,
    ) -> Schedule:
        """Add a schedule that starts operations at times or on a condition; once for each, also after a
        change of the leader.

        Parameters
        ----------
        name:
            Name of the schedule within the table.
        type, argument, object, deadline_s:
            As of :meth:`~distop.client.aio.AsyncClient.start`; planned each time. In texts of the argument
            ``{{ tick }}``, ``{{ tick | date }}`` and ``{{ tick | date('%Y/%m') }}`` stand for the time that
            the operation is started for.
        cron:
            Five fields: ``"30 3 * * *"``. Of the times missed while no coordinator ran, only the last is made
            up for.
        timezone:
            Of these times and of the templates, such as ``"Europe/Berlin"``; empty: UTC. A time that the
            clocks jump over comes at that moment, and one that they show twice the first time.
        when:
            Instead: a condition, such as ``"small_files > 200"``. It is evaluated when the table's head has
            moved, at most once a minute. Also with times, which then wait for it: ``"watermark(trips, s3://in,
            {{ tick | date }}) >= 24"``, evaluated when watermarks of table ``trips`` have moved.

        Raises
        ------
        AlreadyExists
            The table has a schedule of this name (``SCHEDULE_EXISTS``).
        TableNotFound
            There is no such table, or none that the condition names.
        """
        reply = await self._once(
            "AddSchedule",
            table=self.name,
            name=name,
            type=type,
            object=object,
            argument_json=to_json(argument or {}, "argument"),
            options=operation_options(deadline_s=deadline_s),
            cron=cron,
            timezone=timezone,
            when=when,
        )
        return Schedule.from_proto(reply)

    async def schedules(self) -> list[Schedule]:
        """The schedules of a table, in the order of their names."""
        reply = await self._call("ListSchedules", table=self.name)
        return [Schedule.from_proto(message) for message in reply.schedules]

    async def pause_schedule(self, name: str, reason: str = "") -> Schedule:
        """Pause it: it starts nothing until it is resumed."""
        return await self._control_schedule(name, "pause", reason)

    async def resume_schedule(self, name: str, reason: str = "") -> Schedule:
        """Resume it; missed times are not made up for."""
        return await self._control_schedule(name, "resume", reason)

    async def remove_schedule(self, name: str, reason: str = "") -> Schedule:
        """Remove it; operations that it started go on."""
        return await self._control_schedule(name, "remove", reason)

    async def run_schedule(self, name: str, tick: datetime | str) -> AsyncOperationHandle:
        """Make up for a time of a schedule, such as one that was skipped: start its operation, once.

        Parameters
        ----------
        tick:
            One of its times of the last 6 days; without a time zone in that of the schedule.

        Returns
        -------
        The operation; if the schedule or a call has started one for this time before, that one, as ``found``,
        unless it has failed or was cancelled.

        Raises
        ------
        InvalidArgument
            It is none of the schedule's times.
        PreconditionFailed
            It is in the future or too long ago, or the schedule has no times.
        IncompatibleOperation, TablePaused
            As of a start.
        """
        text = tick if isinstance(tick, str) else tick.isoformat()
        reply = await self._once("RunSchedule", table=self.name, name=name, tick=text)
        return AsyncOperationHandle.of_reply(self._connection, reply)

    async def _control_schedule(self, name: str, action: str, reason: str) -> Schedule:
        reply = await self._once("ControlSchedule", table=self.name, name=name, action=action, reason=reason)
        return Schedule.from_proto(reply)
