"""What the cluster does with backlogs while it is struck."""

from functools import partial
from typing import Any

import msgspec

from chaos.lab import Lab
from chaos.ledger import Batch, Book, Started
from distop.metastore.backlog.batches import AppliedRecord, ordering_of
from distop.metastore.etcd.txn import Put, Txn, unchanged
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head


async def ordered(lab: Lab) -> list[str]:
    """Two batches through a backlog, and a third that blocks it and is skipped."""
    book, client = await lab.table("ordered"), lab.client
    first = f"{lab.operations:06d}"
    batches = {f"{first}-{number}": lab.new_batch() for number in (1, 2)}
    await lab.retry_until_known(partial(client.table(book.table).set_ordering, gate="closed"))
    for name, batch in reversed(batches.items()):
        argument = {"paths": [str(batch.folder)], "split_bytes": 1024}
        await lab.retry_until_known(partial(client.table(book.table).enqueue, name, "ingest", argument))
    bad = f"{first}-3"
    await lab.retry_until_known(partial(client.table(book.table).enqueue, bad, "noop", {"partitions": -1}))
    await lab.retry_until_known(partial(client.table(book.table).open_gate))
    await _skip(lab, book, bad)
    await drained(lab, book)
    problems, revisions = [], []
    for name, batch in batches.items():
        revision, wrong = await _applied(lab, book, name, batch=batch)
        revisions.append(revision)
        problems += wrong
    return problems if revisions == sorted(revisions) else [*problems, f"{book.table}: out of order"]


async def in_parts(lab: Lab) -> list[str]:
    """Two batches that cannot be applied together: one by one then, and the one to blame is skipped."""
    book, client = await lab.table("in_parts"), lab.client
    good, bad = (f"{lab.operations:06d}-{number}" for number in (1, 2))
    await lab.retry_until_known(partial(client.table(book.table).set_ordering, gate="closed", together=2))
    for name, partitions in ((good, 0), (bad, -5)):
        await lab.retry_until_known(
            partial(client.table(book.table).enqueue, name, "noop", {"partitions": partitions})
        )
    await lab.retry_until_known(partial(client.table(book.table).open_gate))
    await _skip(lab, book, bad)
    await drained(lab, book)
    return (await _applied(lab, book, good))[1]


async def rolled_back(lab: Lab) -> list[str]:
    """Batches, in order and without one, that are rolled back and then applied again."""
    book, client = await lab.table("rolled_back"), lab.client
    first = f"{lab.operations:06d}"
    kept, again, loose = (lab.new_batch() for _ in range(3))
    await _publish(lab, book, f"{first}-0", kept)
    await drained(lab, book)
    head = await lab.cluster.store.get(lab.cluster.store.keyspace.table(book.table).head)
    await _publish(lab, book, f"{first}-1", again)
    await _publish(lab, book, f"{first}-2", loose, ordered=False)
    await drained(lab, book)
    lab.here()
    target = {"snapshot": str(decode(head.value, Head).snapshot_id)}
    problems = await lab.ended(await lab.start(book, "rollback", target))
    await lab.retry_until_known(partial(client.table(book.table).open_gate))
    await drained(lab, book)
    for name, batch in ((f"{first}-0", kept), (f"{first}-1", again)):
        problems += (await _applied(lab, book, name, batch=batch))[1]
    book.published(loose)
    return problems


async def replaced(lab: Lab) -> list[str]:
    """A batch that is replaced by another delivery while a later one stays, and a request that is run anew
    after its files have changed."""
    book, client = await lab.table("replaced_batches", apart=True), lab.client
    first = f"{lab.operations:06d}"
    before, later, after = (lab.new_batch() for _ in range(3))
    await _publish(lab, book, f"{first}-0", before)
    await _publish(lab, book, f"{first}-1", later)
    await drained(lab, book)
    lab.here()
    argument = {"paths": [str(after.folder)]}
    await lab.retry_until_known(partial(client.table(book.table).replace_batch, f"{first}-0", argument))
    await drained(lab, book)
    problems = []
    for name, batch in ((f"{first}-0", after), (f"{first}-1", later)):
        problems += (await _applied(lab, book, name, batch=batch))[1]
    book.watermarks.add(before.name)  # it had been read, too
    return problems + await _run_anew(lab, book)


async def staged(lab: Lab) -> list[str]:
    """Batches that are written to a branch first: one is skipped, one is approved, and one is approved after
    others have written to the table."""
    book, client = await lab.table("staged"), lab.client
    first = f"{lab.operations:06d}"
    await lab.retry_until_known(partial(client.table(book.table).set_ordering, before=True))
    batches = {f"{first}-{number}": lab.new_batch() for number in (0, 1, 2)}
    for name, batch in batches.items():
        await _publish(lab, book, name, batch)
    unwanted, kept, last = batches
    await _waits(lab, book, unwanted)
    await lab.retry_until_known(partial(client.table(book.table).skip_batch, unwanted))
    branch = await _waits(lab, book, kept)
    await lab.retry_until_known(partial(client.table(book.table).approve_batch, kept, branch=branch))
    branch = await _waits(lab, book, last)
    problems = await lab.ended(await lab.ingest(book))
    await lab.quiet()
    lab.here()
    await lab.retry_until_known(partial(client.table(book.table).approve_batch, last, branch=branch))
    await drained(lab, book)
    for name in (kept, last):
        problems += (await _applied(lab, book, name, batch=batches[name]))[1]
    return problems


async def _waits(lab: Lab, book: Book, batch: str) -> str:
    """The branch of a batch, once it waits for its approval."""

    async def waits() -> list[str]:
        ordering = await lab.client.table(book.table).ordering()
        is_it = ordering.awaiting == batch and ordering.staged is not None
        return [ordering.staged.branch] if is_it and ordering.staged is not None else []

    return (await lab.until(waits, f"batch {batch} of {book.table} is not staged"))[0]


async def _publish(lab: Lab, book: Book, name: str, batch: Batch, *, ordered: bool = True) -> None:
    argument = {"paths": [str(batch.folder)], "split_bytes": 1024}
    await lab.retry_until_known(
        partial(lab.client.table(book.table).enqueue, name, "ingest", argument, ordered=ordered)
    )


async def _run_anew(lab: Lab, book: Book) -> list[str]:
    """A request whose files are changed, and that is run again in place of its rows."""
    before, after = lab.new_batch(), lab.new_batch()
    argument, name = {"paths": [str(before.folder)]}, f"anew-{before.name}"

    async def run(*, again: bool) -> Started:
        call = partial(lab.client.start, book.table, "ingest", argument, run=name, again=again)
        return lab.begun(OperationId.parse((await lab.retry_until_known(call)).name), book)

    problems = await lab.ended(await run(again=False))
    for file in after.folder.iterdir():
        file.replace(before.folder / file.name)
    problems += await lab.ended(await run(again=True))
    book.published(after, marked=False)
    book.watermarks.add(before.name)
    return problems


async def _applied(lab: Lab, book: Book, name: str, **more: Any) -> tuple[int, list[str]]:
    """The revision at which a batch was applied, and what is wrong with its operation."""
    store = lab.cluster.store
    kv = await store.get(store.keyspace.table(book.table).applied(name))
    operation = OperationId.parse(decode(kv.value, AppliedRecord).operation)
    return kv.mod_revision, await lab.ended(lab.begun(operation, book, **more))


async def _skip(lab: Lab, book: Book, batch: str) -> None:
    """Leave a batch out, once it blocks its table."""

    async def blocked() -> bool:
        block = (await lab.client.table(book.table).ordering()).blocked
        return block is not None and block.batch == batch

    await lab.until(blocked, f"{book.table} is not blocked by {batch}")
    await lab.retry_until_known(partial(lab.client.table(book.table).skip_batch, batch))


async def drained(lab: Lab, book: Book) -> None:
    """Until nothing is queued, in order or without one, and the leader has seen that."""
    store = lab.cluster.store
    index = store.keyspace.table(book.table).backlog_index

    async def empty() -> bool:
        looked = not (await store.get(index)).exists
        waiting = [batch async for batch in lab.client.table(book.table).backlog()]
        waiting += [batch async for batch in lab.client.table(book.table).backlog(ordered=False)]
        return looked and not waiting

    await lab.until(empty, f"the backlog of {book.table} is not drained")


async def flight_of_nothing(lab: Lab) -> list[str]:
    """A table whose backlog waits for the end of an operation that nobody knows."""
    book, client, store = await lab.table("restored"), lab.client, lab.cluster.store
    keys, name = store.keyspace.table(book.table), f"{lab.operations:06d}"
    await lab.retry_until_known(partial(client.table(book.table).set_ordering, gate="closed"))
    await lab.retry_until_known(partial(client.table(book.table).enqueue, name, "noop", {"partitions": 0}))

    async def restored() -> bool:
        kv = await store.get(keys.ordering)
        record = msgspec.structs.replace(ordering_of(kv), running=f"{book.table}/noop/999999999")
        return (await store.txn(Txn((unchanged(kv),), (Put(keys.ordering, encode(record)),)))).succeeded

    await lab.until(restored, f"{book.table} cannot be written to")
    await lab.retry_until_known(partial(client.table(book.table).open_gate))
    await drained(lab, book)
    return (await _applied(lab, book, name))[1]
