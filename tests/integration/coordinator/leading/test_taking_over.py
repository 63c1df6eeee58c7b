"""Taking over many tables at once, and what that costs etcd."""

import asyncio
from collections.abc import Callable

import pytest

from distop.coordinator.leading.driver import TableDriver
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.operations.pausing import pause_operation, pause_table
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import PauseRecord
from distop.metastore.tables.audit import audit_put
from support.etcd.counting import Counting
from support.etcd.jobs import mark, mark_all
from support.etcd.starts import begin, make_table
from support.services.coordinators import leader_of, leadership
from support.waiting import eventually

TABLES = 100
MANY = 40
"""Operations of one of them."""


async def _gone(client: EtcdClient, operation: OperationId) -> bool:
    return not (await client.get(client.keyspace.operation(operation).state)).exists


async def test_a_new_leader_of_many_tables_makes_few_requests(client: EtcdClient, counting: Counting) -> None:
    """G1, O24: tables that are taken over together are read together, and each has one watch."""
    names = [f"t{number:03d}" for number in range(TABLES)]
    await asyncio.gather(*(make_table(client, name) for name in names))
    operations = await asyncio.gather(*(begin(client, table=name, partition_count=2) for name in names))
    # One has come far, one table has an operation of many jobs, and one has many operations.
    await mark(client, operations[0], "0")

    async def other(table: str, count: int, object: str = "") -> OperationId:
        kind = "per_object" if object else "friend"
        return await begin(
            client, table=table, kind=kind, object=object, compatible=lambda _: True, partition_count=count
        )

    large = await other(names[2], 100)
    await mark_all(client, large, map(str, range(100)))
    many = [await other(names[3], 1, f"o{number}") for number in range(MANY)]

    counting.requests = counting.watches = 0
    async with leadership(counting) as (leading, member):
        # All but the large one, which ends at once.
        await eventually(lambda: sum(len(list(found)) for found in leading.led().values()) == TABLES + MANY)
        # One after the other, each table would cost eight requests.
        assert counting.watches <= TABLES + 30
        assert counting.requests <= 2 * TABLES
        assert await eventually(lambda: _gone(client, large))
        await mark(client, operations[0], "1")
        await mark_all(client, operations[5], "01")
        await mark(client, many[-1], "0")
        for operation in (operations[0], operations[5], many[-1]):
            assert await eventually(lambda operation=operation: _gone(client, operation))
        assert await leader_of(client, names[-1]) == member.id


async def test_a_pause_concerns_its_leader_alone(client: EtcdClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """G1, O21: a leader that looks reads its backlog, so pauses of many tables would cost the square."""
    names = ("t", "t.2", "u")
    for name in names:
        await make_table(client, name)
    operations = [await begin(client, table=name, partition_count=1) for name in names]
    looked: list[TableDriver] = []

    def look_again(
        driver: TableDriver, really: Callable[[TableDriver], None] = TableDriver.look_again
    ) -> None:
        looked.append(driver)
        really(driver)

    monkeypatch.setattr(TableDriver, "look_again", look_again)

    def tables() -> list[str]:
        return [tracked.arg.table for driver in looked for tracked in driver.tracked()]

    async with leadership(client) as (leading, _):
        await eventually(lambda: sum(len(list(found)) for found in leading.led().values()) == len(names))
        looked.clear()
        table, operation = client.keyspace.table("t.2"), client.keyspace.operation(operations[0])
        entry = audit_put(table, "pause", by="me", target="t.2", at=1.0)
        await pause_table(client, table, PauseRecord(), entry)
        await eventually(lambda: tables() == ["t.2"])
        entry = audit_put(client.keyspace.table("t"), "pause", by="me", target="t/noop/1", at=1.0)
        await pause_operation(client, operation, PauseRecord(), entry)
        await eventually(lambda: tables() == ["t.2", "t"])
