"""What the cluster does with schedules while it is struck."""

from __future__ import annotations

import contextlib
from functools import partial

from chaos.lab import Lab
from distop.errors import ScheduleExists, ScheduleNotFound
from distop.metastore.records.operation_id import OperationId
from support.services.schedules import YEARLY, backdate, operations, schedule


async def scheduled(lab: Lab) -> list[str]:
    """A time that has passed is made up for, once; another one is skipped, since the table is paused."""
    book, client, store = await lab.table("scheduled"), lab.client, lab.cluster.store
    name = f"s{lab.operations}"
    add = partial(client.add_schedule, book.table, name, "noop", {"partitions": 2}, cron=YEARLY)
    with contextlib.suppress(ScheduleExists):  # by a call whose answer was lost
        await lab.insist(add)
    await backdate(store, name, book.table)

    async def has_started() -> bool:
        return (await schedule(store, name, book.table)).started > 0

    await lab.until(has_started, f"{book.table}: nothing was started by schedule {name}")
    operation = (await schedule(store, name, book.table)).operation
    problems = await lab.ended(lab.begun(OperationId.parse(operation), book))
    await lab.insist(partial(client.pause_table, book.table, "chaos"))
    await backdate(store, name, book.table)

    async def has_skipped() -> bool:
        return (await schedule(store, name, book.table)).skipped > 0

    await lab.until(has_skipped, f"{book.table}: schedule {name} was not skipped")
    await lab.insist(partial(client.resume_table, book.table, "chaos"))
    record = await schedule(store, name, book.table)
    with contextlib.suppress(ScheduleNotFound):
        await lab.insist(partial(client.remove_schedule, book.table, name, "chaos"))
    if (record.started, record.skipped) != (1, 1):
        problems.append(f"{book.table}: schedule {name} started {record.started}, skipped {record.skipped}")
    started = await operations(store, book.table)
    if len(started) != book.operations:
        problems.append(f"{book.table}: {started} were started, {book.operations} were to be")
    return problems
