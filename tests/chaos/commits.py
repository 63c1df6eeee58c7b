"""Commits that are not an ingest's, while the cluster is struck. Each calls ``lab.here()`` when only its own
commit is still to come: that is when a strike inside of it is armed."""

import asyncio
import secrets
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from chaos.lab import PATIENCE_S, Lab, Stuck
from chaos.ledger import Book
from distop.errors import NotFound

CATALOG_WRITERS = 2
SPACE = "space"
SPARK_S = 2 * PATIENCE_S
"""A Spark program that was killed starts again, on a busy machine for longer than a minute."""


async def compacted(lab: Lab) -> list[str]:
    """Small files of a table at rest become larger ones."""
    book, problems = await lab.table("compacted"), list[str]()
    for _ in range(2):
        problems += await lab.ended(await lab.ingest(book))
    await lab.quiet()
    lab.here()
    compaction = await lab.start(book, "compact", {"min_files": 2, "sort_by": ["id"]})
    return [*problems, *await lab.ended(compaction)]


async def deleted(lab: Lab) -> list[str]:
    """A batch goes out of files that hold rows of others as well: readers see all of it, or nothing."""
    book, problems = await lab.table("deleted", apart=True), list[str]()
    for _ in range(2):
        problems += await lab.ended(await lab.ingest(book))
    problems += await lab.ended(await lab.start(book, "compact", {"min_files": 2}))
    gone = next(iter(book.batches))
    await lab.quiet()
    lab.here()
    ended = await lab.ended(await lab.start(book, "delete", {"where": f"batch = '{gone}'"}))
    if not ended:
        del book.batches[gone]
    return [*problems, *ended]


async def branched(lab: Lab) -> list[str]:
    """A batch is written to a branch, another one to the table meanwhile; then the branch is published on
    top of it. A second branch is dropped, and nobody ever sees its rows."""
    book, batch = await lab.table("branched"), lab.new_batch()
    branch, dropped = f"aside-{lab.operations}", f"dropped-{lab.operations}"
    problems = await lab.ended(await lab.ingest(book))
    for name, files in ((branch, batch), (dropped, lab.new_batch())):
        argument = {"paths": [str(files.folder)], "split_bytes": 1024, "branch": name}
        problems += await lab.ended(await lab.start(book, "ingest", argument))
    problems += await lab.ended(await lab.ingest(book))
    problems += await lab.ended(await lab.start(book, "drop_branch", {"branch": dropped}))
    await lab.quiet()
    lab.here()
    argument = {"branch": branch, "on_conflict": "rebase"}
    return [*problems, *await lab.ended(await lab.start(book, "publish_branch", argument, batch=batch))]


async def written(lab: Lab) -> list[str]:
    """A user's Spark program writes a batch with ``format("distop")``."""
    return await _written(lab, native=False)


async def written_natively(lab: Lab) -> list[str]:
    """A user's Spark program writes a batch with Spark's own Parquet writer."""
    return await _written(lab, native=True)


async def _written(lab: Lab, *, native: bool) -> list[str]:
    """As one run until it is done, as a user would who repeats a job that was killed."""
    await append_batch(lab, await lab.table("written", apart=True), native=native)
    return []


async def append_batch(lab: Lab, book: Book, *, native: bool = False) -> None:
    """Have a Spark program append a new batch to a table."""
    batch, request = lab.new_batch(), f"chaos-{secrets.token_hex(6)}"
    asked = {"table": book.table, "folder": str(batch.folder), "request": request, "bad": 0, "native": native}
    lab.here()
    book.operations += 1
    lab.operations += 1
    deadline, answer = time.monotonic() + SPARK_S, None
    while (answer := await lab.cluster.writer.write(asked)) != {}:
        if time.monotonic() > deadline:
            raise Stuck(f"a Spark program cannot write to {book.table}: {answer}")
    book.published(batch, marked=False)


async def given_up(lab: Lab) -> list[str]:
    """The same with a row that no program can compute: its write is given up, and nothing of it is seen."""
    book, batch = await lab.table("written", apart=True), lab.new_batch()
    for native in (False, True):
        request, bad = f"chaos-{secrets.token_hex(6)}", batch.ids[-1]
        asked = {"table": book.table, "folder": str(batch.folder), "request": request}
        book.operations += 1
        lab.operations += 1
        answer = await lab.cluster.writer.write({**asked, "bad": bad, "native": native})
        if answer == {}:
            return [f"{book.table}: a write with a bad row was published"]
    return []


async def moved_by_hand(lab: Lab) -> list[str]:
    """Watermarks are put somewhere by hand, and forgotten; some so long that those before them are put into
    chunks."""
    book = await lab.table("by_hand", apart=True)
    problems = await lab.ended(await lab.ingest(book))
    await lab.quiet()
    kept, gone, client = f"hand-{lab.operations}", "forgotten", lab.client
    long = dict.fromkeys((f"long-{number}" for number in range(8)), "1" * 7_000)
    for name, value in (long | {kept: "1", gone: "1"}).items():
        await lab.retry_until_known(
            partial(client.table(book.table).set_watermark, "hand", name, value, "chaos")
        )
    with suppress(NotFound):  # an earlier call, whose answer was lost, has done it
        await lab.retry_until_known(
            partial(client.table(book.table).forget_watermarks, "hand", gone, "chaos")
        )
    book.watermarks |= {kept, *long}
    return problems


async def catalogued(lab: Lab) -> list[str]:
    """Several pyiceberg programs at once make tables, commit to one, rename it and drop another."""
    space = f"{SPACE}{lab.operations}"
    lab.operations += 1
    warehouse, rows = lab.folder / "warehouse" / space, list[int]()
    for phase in ("make", "move"):
        ids = [lab.sources.next_id() for _ in range(CATALOG_WRITERS)]
        rows += ids
        working = (
            lab.program("chaos.catalog_program", phase, space, str(number), str(writer), str(warehouse))
            for writer, number in enumerate(ids)
        )
        await asyncio.gather(*working)

    async def tables() -> list[str]:
        return [table.name async for table in lab.client.tables() if table.name.startswith(f"{space}.")]

    names = await lab.retry_until_known(tables)
    if names != [f"{space}.c"]:
        return [f"programs of pyiceberg have left {names}"]
    table = await lab.retry_until_known(partial(lab.client.table(names[0]).get))
    if (before := lab.books.get("catalogued")) is not None:
        lab.retired.append(before)
    location = Path(table.location.removeprefix("file://"))
    lab.books["catalogued"] = Book(names[0], location, foreign=rows, fresh=set(rows))
    return []
