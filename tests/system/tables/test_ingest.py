"""Ingest from the call to the rows: coordinator, executor (threads), etcd and files are all real."""

import asyncio
import re
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from distop.client import AsyncClient, OperationState
from distop.errors import AlreadyIngested, DistopError, EtcdOutOfSpace, SourceUnreadable, TooLateToCancel
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, find_etcdctl
from distop.metastore.etcd.txn import Txn, TxnResult
from support.etcd.lossy import LossyClient, puts
from support.processes import captured
from support.services.executing import Child, runner
from support.services.whole import HEADER, Whole, coordinated, error_of, write_csv
from support.waiting import eventually

AT_REST = re.compile(
    r"_installation|(_coordinators|_executors|_places|_locations|_tables|_namespaces)\..+|t\.(table|head|watermarks|coordinator)"
    r"|t\.(history|request|requestExpiry|auditTrail)\..+|_audit\..+|t\.ingest\.nextInstanceId"
)


async def test_rows_watermarks_and_history_appear_together_and_nothing_is_left(service: Whole) -> None:
    """C8, P1, P11, P14: one operation of several jobs, then a second one on top."""
    first = service.source("a", 0, 3000)
    second = service.source("b", 3000, 500)
    ended = (await service.ingest(first, split_bytes=4096)).raise_for_outcome()
    assert ended.jobs.total == ended.jobs.succeeded > 5
    await service.ingest(second, split_bytes=4096)

    assert await asyncio.to_thread(service.ids) == list(range(3500))
    assert await service.ingested() == ["a", "b"]
    assert not [key for key in await service.at_rest() if not AT_REST.fullmatch(key)]
    assert service.data_files() == await asyncio.to_thread(service.published_files)
    table = await asyncio.to_thread(service.table)
    assert [snapshot.summary["distop.operation"] for snapshot in table.snapshots()] == [  # type: ignore[index]
        "t/ingest/1",
        "t/ingest/2",
    ]
    finished = await service.operations()
    assert [(one.name, one.state, one.facts["rows"]) for one in finished] == [
        ("t/ingest/2", OperationState.SUCCEEDED, 500),
        ("t/ingest/1", OperationState.SUCCEEDED, 3000),
    ]


async def test_the_keys_of_a_running_operation_read_as_documented(
    etcd: EtcdProcess, etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """The design's table of keys, through etcdctl: before anybody runs it, and after it has finished."""

    def etcdctl() -> dict[str, str]:
        command = [
            str(find_etcdctl()),
            f"--endpoints={etcd.endpoint}",
            "get",
            "--prefix",
            f"{etcd_config.prefix}.",
        ]
        said = captured(command, check=True).stdout.splitlines()
        return {key.partition(".")[2]: value for key, value in zip(said[::2], said[1::2], strict=True)}

    async with coordinated(etcd_config, tmp_path, client) as service:
        source = write_csv(tmp_path / "src" / "a", "1.csv", 0, 100)
        operation = await service.client.start("t", "ingest", {"paths": [str(source)]}, run="first try")
        await eventually(lambda: "t.coordinator" in etcdctl())
        seen = etcdctl()
        assert seen["t.ingest.1.state"] == "running"
        assert seen["t.runOps"] == '{"ingest":["1"]}'
        assert seen["t.ingest.nextInstanceId"] == "2"
        assert '"table":"t"' in seen["t.ingest.1.arg"]
        assert '"operation":"t/ingest/1"' in seen["t.request.first%20try"]
        assert "t.head" not in seen
        async with runner(client):
            await operation.wait(timeout_s=90)
            await service.at_rest()
            left = [key for key in await asyncio.to_thread(etcdctl) if not AT_REST.fullmatch(key)]
            assert not left


async def test_a_bad_row_fails_the_operation_and_leaves_the_table_untouched(service: Whole) -> None:
    """P9, U3, O16: the error names file and line; no row, no file, no watermark of it is left."""
    await service.ingest(service.source("good", 0, 200))
    bad = service.source("bad", 200, 3000)
    with (bad / "2.csv").open("w") as file:
        file.write(HEADER + "1,k1,2013-01-01\n" * 10 + "x,k1,2013-01-01\n")
    ended = await service.ingest(
        bad, split_bytes=4096, schema={"id": "long", "kind": "string", "day": "date"}
    )
    assert ended.state is OperationState.FAILED
    assert re.search(r"BAD_ROW: .*2\.csv.*\b12\b", error_of(ended).message), error_of(ended).message
    assert await asyncio.to_thread(service.ids) == list(range(200))
    assert not [key for key in await service.at_rest() if not AT_REST.fullmatch(key)]
    assert service.data_files() == await asyncio.to_thread(service.published_files)
    assert await service.ingested() == ["good"]


async def test_the_same_source_is_not_ingested_twice(service: Whole) -> None:
    """P16 in part: the existing watermark refuses the start, and the error says what to do."""
    source = service.source("a", 0, 10)
    await service.ingest(source)
    with pytest.raises(AlreadyIngested, match="reingest"):
        await service.client.start("t", "ingest", {"paths": [str(source)]})


async def test_one_of_two_ingests_over_the_same_files_wins(idle: Whole) -> None:
    """P16: both have started before either has ended; the other one fails, and nothing of it is left."""
    source = idle.source("a", 0, 10)
    started = [await idle.client.start("t", "ingest", {"paths": [str(source)]}, object=name) for name in "ab"]
    async with runner(idle.store):
        ended = [await idle.client.operation(one.name).wait(timeout_s=90) for one in started]
        await idle.at_rest()
    assert {one.state for one in ended} == {OperationState.SUCCEEDED, OperationState.FAILED}
    assert [one.error.code for one in ended if one.error] == ["WATERMARK_CONFLICT"]
    assert await asyncio.to_thread(idle.ids) == list(range(10))
    assert idle.data_files() == await asyncio.to_thread(idle.published_files)
    [marks] = (await idle.client.table("t").watermarks()).values()
    assert sorted(marks) == ["a"]


BAD_INPUT: list[tuple[dict[str, Any], str]] = [
    ({"table": "nowhere"}, "TABLE_NOT_FOUND"),
    ({"type": "unheard-of"}, "UNKNOWN_OPERATION_TYPE"),
    ({"argument": {"pathes": ["/x"]}}, "INVALID_ARGUMENT"),
    ({"argument": {"paths": 7}}, "INVALID_ARGUMENT"),
    ({"argument": {"paths": ["/no/such/folder"]}}, "SOURCE_UNREADABLE"),
    ({"argument": {"paths": ["EMPTY"]}}, "SOURCE_EMPTY"),
    ({"argument": {"paths": ["SOURCE"], "columns": ["no_such"]}}, "INVALID_ARGUMENT"),
    ({"argument": {"paths": ["SOURCE"], "filter": "no_such > 1"}}, "INVALID_ARGUMENT"),
    ({"argument": {"paths": ["SOURCE"], "source": "x" * 1_600_000}}, "ARGUMENT_TOO_LARGE"),
    ({"object": "7th"}, "INVALID_NAME"),
    ({"type": "noop", "argument": {}, "object": "heaven"}, "INVALID_ARGUMENT"),
    ({"partitions": ["state"]}, "INVALID_NAME"),
]


async def test_bad_input_is_refused_by_code_and_leaves_nothing(service: Whole) -> None:
    """U3, O4: no key and no file is left by a start that fails."""
    source = service.source("a", 0, 10)
    (service.folder / "src" / "empty").mkdir()
    places = {"SOURCE": str(source), "EMPTY": str(service.folder / "src" / "empty")}
    before = await service.keys()
    for changes, code in BAD_INPUT:
        request = {"table": "t", "type": "ingest", "argument": {"paths": ["SOURCE"]}, **changes}
        argument = request["argument"]
        if isinstance(argument.get("paths"), list):
            argument = {**argument, "paths": [places.get(path, path) for path in argument["paths"]]}
        with pytest.raises(DistopError) as caught:
            await service.client.start(**{**request, "argument": argument})
        assert caught.value.code == code, caught.value
        assert await service.keys() == before, code
        assert not service.location.exists()


async def test_a_program_of_pyiceberg_appends_while_operations_commit(service: Whole) -> None:
    """P6, P7, P14: no row of either program is lost, whichever moves the head first."""
    await service.ingest(service.source("0", 0, 10))
    command = ("-m", "support.tables.foreign_appender", "default.t", "4", "1000000")
    with Child(service.etcd, service.folder, *command) as foreign:
        # Operations without pause may keep a slower writer waiting, so there is an end of them.
        for number in range(1, 7):
            source = service.source(str(number), number * 10, 10)
            (await service.ingest(source)).raise_for_outcome()
        assert await foreign.exit_code() == 0, foreign.log.read_text()
    expected = [*range(70), *range(1_000_000, 1_000_004)]
    assert await asyncio.to_thread(service.ids) == expected


async def test_readers_see_all_of_an_operation_or_nothing(service: Whole) -> None:
    """P3: a reader in a loop only ever counts whole operations."""
    rows, rounds = 700, 4
    await service.ingest(service.source("0", 0, rows), split_bytes=4096)
    counts, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            counts.append(service.rows().num_rows)

    reading = asyncio.create_task(asyncio.to_thread(read))
    for number in range(1, rounds):
        source = service.source(str(number), number * rows, rows)
        await service.ingest(source, split_bytes=4096)
    done.set()
    await reading
    assert len(counts) > rounds
    assert {count % rows for count in counts} == {0}
    assert counts == sorted(counts)


@pytest.mark.parametrize("refusals", [1, 6])
async def test_a_publication_that_a_full_etcd_has_made_and_refused(
    service: Whole, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """P8, O27: the files that it wrote are those of the table; nothing of it is done twice."""
    publishes = puts(service.store.keyspace.table("t").head)
    as_it_is, refused = EtcdClient.txn, 0

    async def full(client: EtcdClient, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        nonlocal refused
        if not publishes(txn) or refused == refusals:
            return await as_it_is(client, txn, timeout_s=timeout_s)
        refused += 1
        if refused == 1:
            await as_it_is(client, txn, timeout_s=timeout_s)
        raise EtcdOutOfSpace

    monkeypatch.setattr(EtcdClient, "txn", full)
    for start in (0, 10):
        (await service.ingest(service.source(str(start), start))).raise_for_outcome()
    assert refused == refusals
    assert await asyncio.to_thread(service.ids) == list(range(20))


async def test_a_table_that_a_full_etcd_has_refused(service: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """O27, U3: the creator gets its own table as the answer, not the error that another one exists."""
    makes, as_it_is = puts(service.store.keyspace.table("made").table), EtcdClient.txn

    async def full(client: EtcdClient, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        if not makes(txn):
            return await as_it_is(client, txn, timeout_s=timeout_s)
        await as_it_is(client, txn, timeout_s=timeout_s)
        raise EtcdOutOfSpace

    monkeypatch.setattr(EtcdClient, "txn", full)
    assert (await service.client.create_table("made", str(service.folder / "made"))).name == "made"


MOMENTS = 14


async def test_whenever_it_is_cancelled_it_has_one_outcome_and_leaves_nothing(service: Whole) -> None:
    """O19: the reply says that it is requested; rows and watermarks are published together, or not at all."""
    expected: list[int] = []
    before = 0
    outcomes = []
    for moment in range(MOMENTS):
        source = write_csv(service.folder / f"in{moment}", "a.csv", 100 * moment, 6)
        write_csv(service.folder / f"in{moment}", "b.csv", 100 * moment + 6, 6)
        started = await service.client.start("t", "ingest", {"paths": [str(source)]})
        # The later the moment, the more has happened: not before the n-th change that a watcher hears of.
        seen = 0
        async with aclosing(started.watch()) as updates:
            async for update in updates:
                seen += 1
                if seen > moment % 7 or update.operation.done:
                    break
        try:
            asked = await started.cancel(reason=f"moment {moment}")
            assert asked.cancel_requested or asked.done
        except TooLateToCancel:
            pass
        ended = await started.wait(timeout_s=90)
        outcomes.append(ended.state)
        marks = await service.client.table("t").watermarks()
        published = sum(map(len, marks.values())) > before
        before = sum(map(len, marks.values()))
        if ended.state is OperationState.SUCCEEDED:
            expected += range(100 * moment, 100 * moment + 12)
            assert published
        else:
            assert ended.state is OperationState.CANCELLED
            by = service.client.identity
            assert error_of(ended).message == f"cancelled by {by}: moment {moment}"
            assert (await started.cancel()).state is OperationState.CANCELLED
            assert not published
    keys = await service.at_rest()
    assert not [key for key in keys if key.startswith(("t.ingest.1", "_active", "_paused"))], keys
    assert "t.runOps" not in keys
    if expected:
        assert await asyncio.to_thread(service.ids) == expected
        assert service.data_files() == await asyncio.to_thread(service.published_files)
    else:
        assert service.data_files() == set()
    assert OperationState.CANCELLED in outcomes


COLUMNS = 1_000_000


@pytest.mark.parametrize("header", ["many names", "one name"])
async def test_a_header_of_a_million_columns_holds_up_nobody(service: Whole, header: str) -> None:
    """S1, U3: refused by its field and its file; meanwhile other tables are planned and loaded."""
    wide = service.folder / "wide"
    wide.mkdir()
    names = (f"c{number}" for number in range(COLUMNS)) if header == "many names" else ["same"] * COLUMNS
    (wide / "1.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * COLUMNS) + "\n")
    source = write_csv(service.folder / "src", "1.csv", 0, 10)
    for name in ("other", "third"):
        await service.client.create_table(name, str(service.folder / name))

    async def attack() -> SourceUnreadable:
        with pytest.raises(SourceUnreadable) as refused:
            async with AsyncClient(service.address, timeout_s=120) as stranger:
                await stranger.start("t", "ingest", {"paths": [str(wide)]})
        return refused.value

    async def load(name: str) -> list[int]:
        async with AsyncClient(service.address, timeout_s=120) as friend:
            operation = await friend.start(name, "ingest", {"paths": [str(source)]})
            assert (await operation.wait(timeout_s=120)).error is None
        return await asyncio.to_thread(service.ids, name)

    attacks = asyncio.gather(*(attack() for _ in range(4)))
    first, second = await asyncio.gather(load("other"), load("third"))
    assert first == second == list(range(10))
    for refused in await attacks:
        assert refused.details["field"] == "paths"
        assert "1.csv has 1,000,000 columns, at most 10,000 are read" in refused.message
