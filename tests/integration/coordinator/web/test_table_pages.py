"""The pages of one table: what is published in it, its batches, schedules and watermarks."""

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from distop.coordinator.service import ANSWERING
from distop.metastore.backlog.batches import AppliedRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import encode
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from support.services.backlogs import configure, put
from support.services.browsing import Web, url
from support.services.coordinators import Service
from support.tables.catalogs import SCHEMA, ids, make_catalog


async def test_the_page_of_a_table_shows_its_commits_over_time_with_commands_to_mend_it(
    etcd: EtcdProcess, prefix: str, tmp_path: Path, web: Web
) -> None:
    """U1: columns, rows, files; small files with the command that joins them; who made each snapshot."""

    def publish() -> list[int]:
        with make_catalog(etcd, prefix, tmp_path) as catalog:
            catalog.create_namespace_if_not_exists("default")
            table = catalog.create_table("default.days", SCHEMA)
            for number in range(22):
                table.append(ids(number, 1))
            table.manage_snapshots().create_branch(table.metadata.snapshots[3].snapshot_id, "audit").commit()
            return [one.snapshot_id for one in table.metadata.snapshots]

    published = await asyncio.to_thread(publish)
    name = "days"
    shown = await web.shows(url("/table", name), "22 rows", "22 files", "22 rows", "21 small files")
    assert "distop table compact days" in shown.words
    assert shown.text.count('<path class="line') == 3
    assert "kind" in shown.words
    listed = await web.get(url("/table/snapshots", name))
    assert listed.words.count("another program") == 22 + 1
    assert f">{published[3]}<" in listed.text
    assert "audit" in listed.words


async def test_batches_stand_in_a_calendar_that_leads_to_their_operations(
    service: Service, client: EtcdClient, web: Web
) -> None:
    """U1: what waits, what was applied, and the gate."""
    for day in ("2024-01-30", "2024-02-01"):
        await put(client, day)
    path = url("/table/batches", "t")
    await web.shows(path, "2024-01-30: applied", "2024-02-01: applied", "No batch waits")
    earlier = await web.shows(url("/operation", "t/noop/1"), "one of a series")
    assert "0 of 0 jobs" not in earlier.words
    keys = client.keyspace.table("t")
    six = AppliedRecord(outcome="applied", operation="t/noop/9", digest="", uid="", rows=12441, together=6)
    await client.put(keys.applied("2024-02-01"), encode(six))
    await web.shows(path, "12,441 in 6 batches")
    last = await web.shows(url("/table", "t"), "batch 2024-02-01")
    assert "batch 2024-01-30" not in last.words, "of an earlier one of a series only the rows are kept"
    await configure(client, gate="closed")
    await put(client, "2024-02-02")
    shown = await web.shows(path, "2024-02-02: waiting", "closed")
    assert 'href="/operation?name=t%2Fnoop%2F' in shown.text
    assert "its gate is closed" in shown.words


async def test_schedules_say_when_they_run_next(service: Service, web: Web) -> None:
    schedules = distop_pb2_grpc.ScheduleServiceStub(service.channel)
    request = pb.AddScheduleRequest(
        table="t", name="nightly", type="noop", cron="0 3 * * *", requested_by="ana"
    )
    await schedules.AddSchedule(request, timeout=10)
    shown = await web.shows(url("/table/schedules", "t"), "nightly", "0 3 * * *", "ana")
    assert "in " in shown.words


async def test_rules_have_their_last_verdicts_and_quarantine_what_mends_it(
    service: Service, client: EtcdClient, web: Web
) -> None:
    """U1: from what the operations of the table have reported."""
    checks = {"rules": ["id > 0", {"not_null": ["id", "kind"]}]}
    await service.create_table("ruled", options_json=json.dumps({"checks": checks}))
    keys = client.keyspace.table("ruled")
    broken = {"rule": "id > 0", "rows": 1234, "partitions": 1, "most": {"0": 1234}}
    reported: list[tuple[str, dict[str, Any]]] = [
        ("success", {"rules": 2, "checkedRows": 7000, "violatedRules": 0}),
        ("failed", {"rules": 2, "checkedRows": 9, "violatedRules": 1, "violations": [broken]}),
        ("success", {"quarantine": "quarantine/ingest-1", "badRows": 3}),
        ("success", {"quarantine": "quarantine/ingest-2", "badRows": 1}),
        ("success", {"replayOf": "ruled/ingest/3"}),
    ]
    for number, (outcome, facts) in enumerate(reported, start=1):
        line = HistoryRecord(outcome=outcome, started_at=float(number), finished_at=number + 1.0, facts=facts)
        await client.put(keys.history(OperationId("ruled", "ingest", number)), encode(line))
    shown = await web.shows(url("/table/rules", "ruled"), "id > 0", "not_null", "id, kind", "7,000")
    assert re.findall(r'"Verdict"><span class="badge \w+">(\w+)<', shown.text) == ["refused", "passed"]
    assert "id > 0: 1,234" in shown.words
    kept = await web.shows(url("/table/quarantine", "ruled"), "3 rows", "1 row")
    assert 'href="/operation/quarantine?name=ruled%2Fingest%2F4"' in kept.text
    assert kept.words.count("distop quarantine replay") == 1
    assert "distop quarantine replay ruled/ingest/4 --file FOLDER" in kept.words
    assert ">ruled/ingest/5<" in kept.text


async def test_storage_is_read_in_the_threads_of_answers(
    service: Service, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6: what hangs there takes none of the threads that everything else of the process uses."""
    threads: list[str] = []

    def content_of(*_: object) -> pb.TableContent:
        threads.append(threading.current_thread().name)
        return pb.TableContent()

    monkeypatch.setattr("distop.coordinator.views.contents.content_of", content_of)
    await web.shows(url("/table", "t"), "Columns")
    assert threads
    assert all(name.startswith(ANSWERING) for name in threads)
