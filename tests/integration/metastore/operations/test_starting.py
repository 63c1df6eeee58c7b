"""The transaction that starts an operation."""

import asyncio
import secrets

import pytest

from distop.errors import ArgumentTooLarge, IncompatibleOperation, OutcomeUnknown, RunReused, TableNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import MAX_OPS, MAX_REQUEST_BYTES, KeyValue
from distop.metastore.etcd.update import MAX_TRIES
from distop.metastore.operations.starting import digest_of
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import COMMITTING, RUNNING, OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import decode_run_ops
from support.etcd.lossy import Fault, LossyClient
from support.etcd.starts import begin, make_table
from support.refusals import refused


@pytest.fixture(autouse=True)
async def table(client: EtcdClient) -> None:
    await make_table(client)


async def everything(client: EtcdClient) -> list[KeyValue]:
    return (await client.scan(client.keyspace.prefix)).kvs


async def running(client: EtcdClient, table: str = "t") -> dict[str, list[str]]:
    return decode_run_ops((await client.get(client.keyspace.table(table).run_ops)).value)


async def test_a_started_operation_has_all_its_keys(client: EtcdClient) -> None:
    """O1, O2: at one revision."""
    operation = await begin(client, partition_count=3, argument={"x": 1})
    assert operation == OperationId("t", "noop", 1)
    keys = client.keyspace.operation(operation)
    arg, state = await client.get(keys.arg), await client.get(keys.state)
    assert decode(arg.value, OperationArg).argument == {"x": 1}
    assert state.value == RUNNING
    assert await running(client) == {"noop": ["1"]}
    index = await client.scan(client.keyspace.active)
    assert [client.keyspace.parse_active(kv.key) for kv in index.kvs] == [operation]
    waiting = await client.get(keys.waiting)
    assert {kv.mod_revision for kv in (arg, state, *index.kvs, waiting)} == {arg.mod_revision}


async def test_an_operation_without_jobs_is_sealed_from_the_start_and_waits_for_no_executor(
    client: EtcdClient,
) -> None:
    keys = client.keyspace.operation(await begin(client))
    assert (await client.get(keys.state)).value == COMMITTING
    assert not (await client.get(keys.waiting)).exists
    counted_later = client.keyspace.operation(
        await begin(client, kind="other", dynamic=True, compatible=lambda other: True)
    )
    assert (await client.get(counted_later.state)).value == RUNNING
    assert (await client.get(counted_later.waiting)).exists


async def test_fifty_parallel_starts_of_fifty_objects_have_distinct_growing_ids(client: EtcdClient) -> None:
    """O1, O3."""
    starts = [begin(client, kind="build", object=f"o{number}") for number in range(50)]
    operations = await asyncio.gather(*starts)
    assert sorted(operation.instance for operation in operations) == list(range(1, 51))
    assert len((await running(client))["build"]) == 50
    revisions = {
        operation.instance: (await client.get(client.keyspace.operation(operation).arg)).create_revision
        for operation in operations
    }
    assert [revisions[number] for number in range(1, 51)] == sorted(revisions.values())


async def test_exactly_one_of_fifty_parallel_starts_of_one_object_wins(client: EtcdClient) -> None:
    """O2, O3: the errors of the others name the incompatible operation."""
    outcomes = await asyncio.gather(*(begin(client) for _ in range(50)), return_exceptions=True)
    winners = [outcome for outcome in outcomes if isinstance(outcome, OperationId)]
    losers = [outcome for outcome in outcomes if not isinstance(outcome, OperationId)]
    assert winners == [OperationId("t", "noop", 1)]
    for loser in losers:
        assert isinstance(loser, IncompatibleOperation)
        assert loser.details["operation"] == "t/noop/1"
        assert loser.retryable
    assert len(losers) == 49


async def test_a_start_that_fails_leaves_nothing(client: EtcdClient) -> None:
    """O4."""
    await begin(client)
    before = await everything(client)
    with pytest.raises(IncompatibleOperation):
        await begin(client)
    with pytest.raises(IncompatibleOperation):
        await begin(client, kind="other")
    with pytest.raises(TableNotFound):
        await begin(client, table="nowhere")
    with pytest.raises(ArgumentTooLarge):
        await begin(
            client, kind="big", compatible=lambda other: True, argument={"x": "y" * MAX_REQUEST_BYTES}
        )
    assert await everything(client) == before


async def test_the_largest_argument_that_is_let_through_is_taken_by_etcd(client: EtcdClient) -> None:
    """O5, U3: there is no size between our limit and etcd's."""
    operation = await begin(client, argument={"x": "y" * (MAX_REQUEST_BYTES - 2_000)})
    assert len((await client.get(client.keyspace.operation(operation).arg)).value) > MAX_REQUEST_BYTES - 2_000


async def test_types_that_name_each_other_run_side_by_side(client: EtcdClient) -> None:
    """O3."""
    await begin(client, kind="a")
    await begin(client, kind="b", compatible=lambda other: other == "a")
    with refused(error=IncompatibleOperation, operation="t/b/1"):
        await begin(client, kind="c", compatible=lambda other: other == "a")
    assert await running(client) == {"a": ["1"], "b": ["1"]}


async def test_tables_and_types_count_for_themselves(client: EtcdClient) -> None:
    """O1, O29."""
    await make_table(client, "t2")
    one = await begin(client)
    other = await begin(client, table="t2")
    third = await begin(client, kind="other", compatible=lambda other: True)
    assert {one.instance, other.instance, third.instance} == {1}


async def test_ten_thousand_named_partitions_start_in_one_bounded_step(client: LossyClient) -> None:
    """O5."""
    names = [f"partition number {number}" for number in range(10_000)]
    operation = await begin(client, partitions=names, partition_count=10_000)
    (sent,) = [txn for txn in client.sent if len(txn.compares) > 1]
    assert sent.weight() <= MAX_OPS
    assert sent.size() <= MAX_REQUEST_BYTES
    arg = await client.get(client.keyspace.operation(operation).arg)
    assert decode(arg.value, OperationArg).partition_names() == names


@pytest.mark.parametrize(
    "faults", [[Fault.LOST_REPLY], [Fault.LOST_REQUEST], [Fault.LOST_REQUEST, Fault.LOST_REPLY]]
)
async def test_a_lost_reply_starts_nothing_twice(client: LossyClient, faults: list[Fault]) -> None:
    """O7."""
    client.fail(*faults)
    assert await begin(client) == OperationId("t", "noop", 1)
    assert client.spent
    assert await running(client) == {"noop": ["1"]}


async def test_a_repeat_of_a_request_gets_the_first_answer(client: EtcdClient) -> None:
    """O7: also when its operation is in its own way, and when it is over."""
    first = await begin(client, run="r", body=1)
    assert await begin(client, run="r", body=1) == first
    keys = client.keyspace.operation(first)
    await client.delete(keys.state)
    await client.delete(client.keyspace.table("t").run_ops)
    assert await begin(client, run="r", body=1) == first
    assert await begin(client, run="other") == OperationId("t", "noop", 2)
    assert await begin(client, run="r", body=1) == first


async def test_parallel_repeats_of_a_request_make_one_operation(client: EtcdClient) -> None:
    """O7: a client that gave up waiting, and its second try."""
    answers = await asyncio.gather(*(begin(client, run="r") for _ in range(20)))
    assert set(answers) == {OperationId("t", "noop", 1)}


async def test_a_run_with_another_body_is_an_error(client: EtcdClient) -> None:
    """O7."""
    await begin(client, run="r", body=1)
    before = await everything(client)
    with refused("run", error=RunReused, operation="t/noop/1"):
        await begin(client, run="r", body=2)
    assert await everything(client) == before


async def test_runs_belong_to_a_table(client: EtcdClient) -> None:
    """O7, O29."""
    await make_table(client, "t2")
    await begin(client, run="a.b/c d", body=1)
    assert await begin(client, table="t2", run="a.b/c d", body=2) == OperationId("t2", "noop", 1)


@pytest.mark.parametrize("then", [Fault.DOWN, Fault.FULL])
async def test_after_a_lost_reply_no_failure_counts_as_certain(client: LossyClient, then: Fault) -> None:
    """O7, U4: "it did not happen" would be a lie while the first copy may still arrive."""
    client.fail(Fault.LOST_REQUEST, *[then] * (MAX_TRIES - 1))
    with pytest.raises(OutcomeUnknown) as caught:
        await begin(client, run="r")
    assert caught.value.details["run"] == "r"
    assert await begin(client, run="r") == OperationId("t", "noop", 1)


def test_digests_depend_on_what_was_asked_and_not_on_how() -> None:
    """O7."""
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])
    assert len({digest_of(secrets.token_hex(4)) for _ in range(10)}) == 10
