"""What a finishing transaction that cannot be sent leaves behind."""

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import msgspec
import pytest

from distop.commit.contract import Contribution
from distop.coordinator.completion.completion import Finishing
from distop.coordinator.starting.services import Term
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.work.work import Work
from distop.errors import CorruptRecord
from distop.metastore.etcd.txn import Put, Txn, absent
from distop.metastore.members.lease import Epoch, LeaseSession
from distop.metastore.operations.ending import apply_resolve, note_failure, request_resolve
from distop.metastore.operations.retention import continued, entry_of
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    COMMITTING,
    RETRY,
    CompletionRecord,
    HistoryRecord,
    OperationArg,
    RequestRecord,
    ResolveRecord,
    SeriesRecord,
)
from distop.metastore.records.record import decode, encode
from distop.operations.registry import Registry
from support.etcd.leading import Committing
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import make_table
from support.services.sharing import services_of


async def test_files_of_a_commit_that_was_never_sent_are_removed(client: LossyClient) -> None:
    """C6: what else it needs cannot be read, so nothing was published."""
    keys = client.keyspace.table("t")
    arg = OperationArg(table="t", type="noop", instance=1, batches=["a"])
    await client.put(keys.ordering, b"of a later version")
    prepared = ["00001.metadata.json"]
    contribution = Contribution(discard=prepared.clear)
    with ThreadPoolExecutor(1) as threads:
        finishing = Finishing(services_of(client, Work(Registry(), threads)))
        term = Term(keys, Epoch(keys.head, 1), Mock())
        tracked = Tracked(keys.operation(OperationId.parse("t/noop/1")), arg)
        history = HistoryRecord(outcome="success")
        with pytest.raises(CorruptRecord):
            await finishing.send(term, tracked, None, history, [contribution])
    assert not prepared


async def test_files_of_a_finish_whose_request_is_still_on_its_way_stay(client: LossyClient) -> None:
    """P8, C10: a decision has kept its repetition away, but not the first copy, once it was acted on."""
    await make_table(client)
    async with LeaseSession(client, 10) as session:
        led = await Committing.of(client, session)
        keys, op, epoch = led.table, led.keys, led.epoch
        failed, again = CompletionRecord(attempts=1, error="x"), ResolveRecord(action=RETRY)
        await note_failure(client, op, epoch, failed, COMMITTING)
        await request_resolve(client, op, again, request="r1")
        tracked = Tracked(op, led.arg, COMMITTING)
        prepared = ["00001.metadata.json"]
        moved = Txn((absent(keys.head),), (Put(keys.head, b"00001.metadata.json"),))
        contribution = Contribution(txn=moved, discard=prepared.clear)
        client.fail(Fault.LOST_REQUEST, when=puts(keys.head))
        with ThreadPoolExecutor(1) as threads:
            finishing = Finishing(services_of(client, Work(Registry(), threads)))
            history = HistoryRecord(outcome="success")
            term = Term(keys, epoch, session)
            assert not await finishing.send(term, tracked, None, history, [contribution])
        late = next(txn for txn in client.sent if puts(keys.head)(txn))
        decided = (await client.get(op.resolve)).mod_revision
        assert await apply_resolve(client, op, epoch, failed, again, decided=decided, now=2.0)
        assert (await client.txn(late)).succeeded
        assert prepared, "the table's metadata file was removed"


@pytest.mark.parametrize("damaged", ["series", "name", "line", "request"])
async def test_an_unreadable_line_of_a_series_holds_up_no_operation(
    client: LossyClient, damaged: str
) -> None:
    """P8, C6: the series is counted anew, unless it is only the request that cannot be read."""
    keys, first = client.keyspace.table("t"), OperationId("t", "noop", 1)
    arg = OperationArg(table="t", type="noop", instance=1, series="stream", run="r")
    ended = HistoryRecord(outcome="success", run="r")
    history, line = await continued(client, keys, arg, ended)
    assert (await client.txn(line + Txn(then=(Put(keys.history(first), encode(history)),)))).succeeded
    request = RequestRecord(operation=str(first), digest="d")
    await client.put(keys.request("r"), b"damaged" if damaged == "request" else encode(request))
    if damaged in ("series", "name"):
        unreadable = b"damaged" if damaged == "series" else encode(SeriesRecord(operation="no name"))
        await client.put(keys.series("stream"), unreadable)
    elif damaged == "line":
        await client.put(keys.history(first), b"damaged")

    assert (await entry_of(client, keys, OperationId("t", "noop", 9))) is None
    second = msgspec.structs.replace(arg, instance=2)
    history, line = await continued(client, keys, second, HistoryRecord(outcome="success"))
    assert (await client.txn(line)).succeeded
    assert history.series is not None
    assert history.series.count == (2 if damaged == "request" else 1)


async def test_a_request_that_is_another_operations_by_now_stays(client: LossyClient) -> None:
    """O7, P8: its id was used again once it was forgotten, before or while the next of the series ends."""
    keys = client.keyspace.table("t")
    arg = OperationArg(table="t", type="noop", instance=1, series="stream", run="r")
    history, line = await continued(client, keys, arg, HistoryRecord(outcome="success", run="r"))
    put = Put(keys.history(arg.id), encode(history))
    assert (await client.txn(line + Txn(then=(put,)))).succeeded
    mine, others = (RequestRecord(operation=f"t/noop/{number}", digest="d") for number in (1, 7))
    second = msgspec.structs.replace(arg, instance=2)
    await client.put(keys.request("r"), encode(mine))
    _, line = await continued(client, keys, second, HistoryRecord(outcome="success"))
    await client.put(keys.request("r"), encode(others))
    assert not (await client.txn(line)).succeeded
    _, line = await continued(client, keys, second, HistoryRecord(outcome="success"))
    assert (await client.txn(line)).succeeded
    assert decode((await client.get(keys.request("r"))).value, RequestRecord) == others


async def test_the_line_of_a_series_stays_while_it_names_quarantined_rows(client: LossyClient) -> None:
    """A6: a batch with bad rows is found when others have followed."""
    keys = client.keyspace.table("t")
    for number, facts in enumerate(({"quarantine": "quarantine/ingest-1"}, {}, {}), start=1):
        arg = OperationArg(table="t", type="noop", instance=number, series="batches")
        history, line = await continued(client, keys, arg, HistoryRecord(outcome="success", facts=facts))
        put = Put(keys.history(arg.id), encode(history))
        assert (await client.txn(line + Txn(then=(put,)))).succeeded
    lines = (await client.scan(keys.history_prefix, keys_only=True)).kvs
    assert [kv.key for kv in lines] == [keys.history(OperationId("t", "noop", n)) for n in (1, 3)]
    assert history.series is not None
    assert history.series.count == 3
