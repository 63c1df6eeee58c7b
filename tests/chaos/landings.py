"""What the cluster does by itself, for landing folders and schedules, while it is struck."""

import contextlib
import shutil
from functools import partial
from pathlib import Path

from chaos.lab import Lab
from chaos.ledger import Batch, Book
from distop.cli.output.exits import SOMETHING_WRONG
from distop.client import Batch as Listed
from distop.errors import ScheduleExists, ScheduleNotFound
from distop.metastore.records.names import OperationId
from support.services.schedules import YEARLY, backdate, operations, schedule


async def landed(lab: Lab) -> list[str]:
    """Two batches in order, each approved by a _BACKFILL; two more without an order, and an invalid one.
    Those in order wait until a _HISTORYDONE opens the gate."""
    book, client = await lab.table("landed"), lab.client
    folder, round_ = lab.folder / "landing" / book.table, f"{lab.operations:06d}"
    ordered = {f"days/{round_}-{number}": lab.new_batch() for number in (1, 2)}
    unordered = {f"loose/{round_}-{number}": lab.new_batch() for number in (1, 2)}
    refused = f"loose/{round_}-refused"
    _control(folder / "_config" / "split.json", '{"split_bytes": 1024}')
    _control(folder / "days" / "_config" / "ORDERME")
    await lab.retry_until_known(
        partial(client.table(book.table).set_ordering, validation=True, gate="closed")
    )
    for name, batch in [*ordered.items(), *unordered.items()]:
        _control(folder / name / "_POINTER", f"{batch.folder}\n")
    _control(folder / refused / "_POINTER", f"{folder}/nothing/is/here\n")
    for name in [*ordered, *unordered, refused]:
        _control(folder / name / "_SUCCESS")
    _control(folder / "_HISTORYDONE")
    problems = list[str]()
    for name in ordered:
        await _look(lab, book, folder)
        await _awaits(lab, book, name)
        _control(folder / "_BACKFILL")
        await _look(lab, book, folder)
        if (folder / "_BACKFILL").exists():
            problems.append(f"{book.table}: a _BACKFILL was left")
        await _approved(lab, book, name)
    await _failed(lab, book, refused)
    await lab.retry_until_known(partial(client.table(book.table).skip_batch, refused))
    await _look(lab, book, folder)
    in_order = await _done(lab, book, list(ordered), ordered=True)
    any_order = await _done(lab, book, [*unordered, refused], ordered=False)
    if any_order[refused].state != "skipped":
        problems.append(f"{book.table}: {refused} is {any_order[refused].state}")
    for name, batch in [*ordered.items(), *unordered.items()]:
        problems += await _entered(lab, book, batch, (in_order | any_order)[name])
    shutil.rmtree(folder)
    return problems


def _control(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def _look(lab: Lab, book: Book, folder: Path) -> None:
    """A landing process looks once."""
    words = ("landing", str(folder), "--table", book.table, "--once", "--address", lab.cluster.addresses())
    await lab.program("distop.cli.main", *words, ends=(0, SOMETHING_WRONG))


async def _awaits(lab: Lab, book: Book, batch: str) -> None:
    async def awaits() -> bool:
        return (await lab.client.table(book.table).ordering()).awaiting == batch

    await lab.until(awaits, f"batch {batch} of {book.table} does not wait for approval")


async def _approved(lab: Lab, book: Book, batch: str) -> None:
    """It was approved by the file, and no other was."""

    async def approved() -> bool:
        return (await lab.client.table(book.table).ordering()).awaiting != batch

    await lab.until(approved, f"batch {batch} of {book.table} is not approved")


async def _failed(lab: Lab, book: Book, batch: str) -> None:
    async def failed() -> bool:
        return any(block.batch == batch for block in (await lab.client.table(book.table).ordering()).failed)

    await lab.until(failed, f"batch {batch} of {book.table} has not failed")


async def _done(lab: Lab, book: Book, batches: list[str], *, ordered: bool) -> dict[str, Listed]:
    async def done() -> dict[str, Listed] | None:
        listed = lab.client.table(book.table).backlog(applied=True, ordered=ordered)
        by_name = {batch.name: batch async for batch in listed}
        return by_name if by_name.keys() >= set(batches) else None

    return await lab.until(done, f"batches of {book.table} are not applied")


async def _entered(lab: Lab, book: Book, batch: Batch, applied: Listed) -> list[str]:
    return await lab.ended(lab.begun(OperationId.parse(applied.operation), book, batch=batch))


async def scheduled(lab: Lab) -> list[str]:
    """A time that has passed is made up for, once; another one is skipped, since the table is paused."""
    book, client, store = await lab.table("scheduled"), lab.client, lab.cluster.store
    name = f"s{lab.operations}"
    add = partial(client.table(book.table).add_schedule, name, "noop", {"partitions": 2}, cron=YEARLY)
    with contextlib.suppress(ScheduleExists):  # by a call whose answer was lost
        await lab.retry_until_known(add)
    await backdate(store, name, book.table)

    async def has_started() -> bool:
        return (await schedule(store, name, book.table)).started > 0

    await lab.until(has_started, f"{book.table}: nothing was started by schedule {name}")
    operation = (await schedule(store, name, book.table)).operation
    problems = await lab.ended(lab.begun(OperationId.parse(operation), book))
    await lab.retry_until_known(partial(client.table(book.table).pause, "chaos"))
    await backdate(store, name, book.table)

    async def has_skipped() -> bool:
        return (await schedule(store, name, book.table)).skipped > 0

    await lab.until(has_skipped, f"{book.table}: schedule {name} was not skipped")
    await lab.retry_until_known(partial(client.table(book.table).resume, "chaos"))
    record = await schedule(store, name, book.table)
    with contextlib.suppress(ScheduleNotFound):
        await lab.retry_until_known(partial(client.table(book.table).remove_schedule, name, "chaos"))
    if (record.started, record.skipped) != (1, 1):
        problems.append(f"{book.table}: schedule {name} started {record.started}, skipped {record.skipped}")
    started = await operations(store, book.table)
    if len(started) != book.operations:
        problems.append(f"{book.table}: {started} were started, {book.operations} were to be")
    return problems
