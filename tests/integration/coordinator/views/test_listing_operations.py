"""Operations of all tables: every one that is asked for, in few requests, however many tables have none."""

from __future__ import annotations

import pytest

from distop.coordinator.views.listing import PEEKED, list_operations
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import encode
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.listing import table_puts
from distop.proto import distop_pb2 as pb
from support.etcd.counting import Counting
from support.etcd.starts import begin

TABLES, ENDED = 400, PEEKED + 5


@pytest.mark.parametrize("page_size", [4, 100])
async def test_operations_of_few_tables_among_many(client: EtcdClient, page_size: int) -> None:
    """O22, G3: of one table that has ended many, one that has ended one, and one where one is running."""
    space = client.keyspace
    records = [TableRecord(name=f"t{n:04d}", location=f"file:///x/{n}") for n in range(TABLES)]
    for first in range(0, TABLES, 60):
        puts = [put for one in records[first : first + 60] for put in table_puts(space.table(one.name), one)]
        await client.txn(Txn(then=tuple(puts)))
    past, once, runs = (space.table(f"t{n:04d}") for n in (120, 250, TABLES - 1))
    lines = [Put(past.history_prefix + b"noop.%d" % n, _line(n)) for n in range(1, ENDED + 1)]
    await client.txn(Txn(then=(*lines, Put(once.history_prefix + b"noop.1", _line(1)))))
    operation = await begin(client, table=runs.name, partition_count=1)
    ended = [f"{past.name}/noop/{n}" for n in range(ENDED, 0, -1)] + [f"{once.name}/noop/1"]

    counting = Counting(client.config)
    found, requests = await _listed(counting, page_size)
    assert found == [*ended, str(operation)]
    live, live_requests = await _listed(counting, page_size, pb.RUNNING, pb.COMMITTING)
    assert live == [str(operation)]
    assert (await _listed(counting, page_size, pb.FAILED))[0] == []
    await counting.close()
    if page_size == 100:
        assert requests < 40
        assert live_requests < 16


def _line(number: int) -> bytes:
    return encode(HistoryRecord(outcome="success", started_at=float(number), finished_at=number + 0.5))


async def _listed(client: Counting, page_size: int, *states: int) -> tuple[list[str], int]:
    """Names, and how many requests it took."""
    request, names, before = pb.ListOperationsRequest(page_size=page_size), list[str](), client.requests
    request.states.extend(states)  # type: ignore[arg-type]
    while True:
        page = await list_operations(client, request)
        names += [one.name for one in page.operations]
        if not page.next_page_token:
            return names, client.requests - before
        request.page_token = page.next_page_token
