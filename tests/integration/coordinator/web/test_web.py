"""The page, over HTTP, against a real coordinator and a real etcd."""

import asyncio
import http.client
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest

from distop.coordinator.service import Coordinator, CoordinatorConfig
from distop.coordinator.views.following import Following
from distop.coordinator.web.reads import HISTORY, LIVE, TABLES
from distop.errors import InvalidArgument, Unavailable
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import count_try
from distop.metastore.operations.runs import take_operation
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord, RunnerRecord
from distop.metastore.records.record import encode, encode_plain
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark, mark_all
from support.services.browsing import Web, page, url
from support.services.coordinators import config_of, leader_of
from support.waiting import eventually

LARGE = 2**62 + 1
EVIL = "<script>alert('x')</script> \"&amp;\" /?a=b#c é"


@asynccontextmanager
async def executor(client: EtcdClient, member: str, *types: str) -> AsyncIterator[LeaseSession]:
    """A member that says it serves these types."""
    async with LeaseSession(client, 10) as session:
        record = MemberRecord(id=member, host="h", types=list(types))
        await client.put(client.keyspace.executor(member), encode(record), lease=session.lease_id)
        yield session


async def test_an_empty_installation_says_what_to_do(web):
    words = (await web.shows("/", "1 coordinator")).words
    assert "No tables. distop table create NAME --location URL makes one." in words
    assert "0 executors" in words
    assert "Nothing is running" in words


async def test_a_running_operation_fills_its_grid_and_says_why(service, web, client):
    """U1: the sentence follows the operation from its start to its end."""
    async with executor(client, "e1", "noop") as session:
        operation = await service.start("t", argument={"partitions": 20}, started_by="ana")
        path = url("/operation", str(operation))
        await web.shows(path, "waiting for a runner (0 of 20 jobs done): 1 executor for type noop")
        keys = client.keyspace.operation(operation)
        assert await take_operation(client, keys, RunnerRecord(member="e1"), session.lease_id)
        await mark_all(client, operation, map(str, range(7)))
        answer = await web.shows(path, "noop/1 running: 7 of 20 jobs done, run by e1")
        assert answer.text.count('<i class="s"') == 7 + 1  # and the legend
        assert 'role="img" aria-label="Jobs of noop/1: 7 of 20 jobs done"' in answer.text
        overview = await web.shows("/", "1 active operation", "7 of 20 jobs done")
        assert "started by ana, run by e1" in overview.words
        jobs = (await web.get(url("/api/jobs", str(operation)))).json
        assert jobs["cells"] == "s" * 7 + "." * 13
        assert jobs["operation"]["jobs"] == {"total": 20, "succeeded": 7, "failed": 0, "counting": False}
        await mark_all(client, operation, map(str, range(7, 20)))
        ended = await web.shows(path, "succeeded", "20 of 20 jobs done", "duration")
        assert ended.text.count('<i class="s"') == 20 + 1
        await web.shows("/", "noop/1 succeeded", "Finished lately", "20/20")


async def test_a_failure_says_which_job_and_stays_in_the_history(service, web, client):
    operation = await service.start("t", argument={"partitions": 3}, started_by="cron")
    await mark(client, operation, "1", error="line 17 of <b>clicks</b>.csv")
    await service.ended(operation)
    error = "line 17 of <b>clicks</b>.csv"
    answer = await web.shows(url("/table", "t"), "JOB_FAILED", error, "cron")
    assert "<b>clicks</b>" not in answer.text
    assert (await web.get(url("/api/table", "t"))).json["why"]["mood"] == "failed"


async def test_jobs_are_listed_by_state_with_their_attempts_and_what_happened(service, web, client):
    """U1: filters stand in the address, and a job that was tried again says so."""
    async with executor(client, "e1", "noop") as session:
        options = pb.OperationOptions(max_failed_partitions=-1)
        operation = await service.start("t", argument={"partitions": 80}, options=options)
        keys = client.keyspace.operation(operation)
        record = RunnerRecord(member="e1", started_at=1.0)
        taken = await take_operation(client, keys, record, session.lease_id)
        assert taken is not None
        await count_try(client, taken.run, "70", "a0", "IO: first")
        for partition in ("70", "71"):
            await mark(client, operation, partition, error=f"line 7 of {partition}")
        path = url("/operation", str(operation))
        failed = await web.shows(f"{path}&jobs=failed", "line 7 of 70", "line 7 of 71", "taken by e1")
        rows = re.findall(r'"Attempts">(\d+|–)<', failed.text)
        assert rows == ["2", "1"]
        assert failed.text.count('class="f again" title="70, tried again"') == 1
        assert "Its jobs run" in failed.words
        waiting = await web.get(f"{path}&jobs=waiting")
        following = re.search(r'href="([^"]*from=\d+)">next', waiting.text)
        assert following is not None
        assert ">79</bdi>" in (await web.get(unescape(following[1].replace("from=30", "from=60")))).text
        assert (await web.get(f"{path}&jobs=asleep")).status == 400
        await count_try(client, taken.run, "0", "a0", "IO: first")
        await mark(client, operation, "0", attempt=f"{taken.run.token}-1-1")
        done = await web.shows(f"{path}&jobs=done", "tried again")
        assert re.findall(r'"Run by"><bdi>(\w+)</bdi>', done.text) == ["e1"]
        await service.operations.CancelOperation(pb.CancelOperationRequest(name=str(operation)))
        ended = await web.shows(path, "cancelled", "no result")
        assert 'class="s again" title="0, tried again"' in ended.text
        shown = await service.operations.GetOperation(
            pb.GetOperationRequest(name=str(operation), events=True)
        )
        assert shown.job_outcomes == "1t69.2f8."


async def test_a_type_that_nobody_serves_is_stuck(service, web, client):
    async with executor(client, "e1", "ingest"):
        await service.start("t", argument={"partitions": 1})
        reason = "no executor serves type noop; 1 executor for other types"
        await web.shows("/", "1 stuck on this page", reason)


async def test_the_page_shows_members_and_leaders(service, web, client):
    async with executor(client, "e1", "ingest", "noop"):
        await service.start("t", argument={"partitions": 1})
        leader = await eventually(lambda: leader_of(client, "t"))
        words = (await web.shows("/members", "serves ingest, noop", "leads 1 table")).words
        assert words.count(leader) == 3  # as a member, as the leader, and in the footer
        listed = (await web.get("/api/members")).json["members"]
        assert [member["role"] for member in listed] == ["coordinator", "executor"]


async def test_operations_are_filtered_in_the_address(service, web, client):
    failed = await service.start("t", argument={"partitions": 1})
    await mark(client, failed, "0", error="disk full")
    await service.ended(failed)
    await service.start("t", argument={"partitions": 1})
    shown = await web.shows("/operations?table=t&states=failed", "disk full")
    assert "noop/2" not in shown.words
    assert "noop/2" in (await web.get("/operations?states=running%2Ccommitting%2Caborting")).words


async def test_search_leads_to_what_was_meant(service, web):
    await service.create_table("flights_2024")
    assert (await web.get("/search?q=t/noop/1")).headers["location"] == "/operation?name=t%2Fnoop%2F1"
    assert (await web.get("/search?q=flights_2024")).headers["location"] == "/table?name=flights_2024"
    found = await web.get("/search?q=2024")
    assert (found.status, "flights_2024" in found.words, ">t<" in found.text) == (200, True, False)
    assert "No table has it." in (await web.get("/search?q=nowhere")).words


async def test_the_doctor_and_the_audit_trail_have_pages(service, web, client):
    await client.put(client.keyspace.table("t").prefix + b"head", b"{")
    await web.shows("/doctor", "cannot be read", timeout_s=30)
    trail = await web.get("/audit?table=t")
    assert "create-table" in trail.words
    assert "create-table" in (await web.get("/audit")).words


async def test_watermarks_by_the_page(service, web, client):
    marks = {"landing": {f"part-{number:03}": f"v{number}" for number in range(250)}}
    await client.put(client.keyspace.table("t").watermarks, encode_plain(marks))
    first = await web.shows(url("/table/watermarks", "t"), "200 on this page", "part-199")
    assert "part-200" not in first.words
    token = re.search(r"marks=([^\"&]+)\">next", first.text)
    assert token is not None
    second = (await web.get(url("/table/watermarks", "t") + f"&marks={token[1]}")).words
    assert "part-249" in second
    assert "part-199" not in second


async def test_history_by_the_page_newest_first(service, web, client):
    for _ in range(HISTORY + 2):
        await service.ended(await service.start("t", argument={"partitions": 0}))
    first = await web.shows(url("/table", "t"), f"noop/{HISTORY + 2}", "noop/3", "older")
    rows = re.findall(r">noop/(\d+)<", first.text)
    assert [int(row) for row in rows] == list(range(HISTORY + 2, 2, -1))
    second = await web.get(url("/table", "t") + "&page=1")
    assert re.findall(r">noop/(\d+)<", second.text) == ["2", "1"]


async def test_tables_by_the_page(service, web):
    names = [f"s{number:02}" for number in range(TABLES + 3)]
    for name in names:
        await service.create_table(name)
    first = await web.shows("/", names[TABLES - 1], "next tables")
    assert names[TABLES] not in first.words
    second = await web.get(f"/?after={names[TABLES - 1]}")
    assert [name for name in names if f">{name}<" in second.text] == names[TABLES:]


async def test_more_operations_than_are_drawn_are_named(service, web):
    names = [f"o{number:02}" for number in range(LIVE + 2)]
    for name in names:
        await service.start("t", kind="per_object", object=name, argument={"partitions": 1})
    answer = await web.shows(url("/table", "t"), f"; {LIVE + 1} other operations", "Also running: ")
    assert answer.text.count("<article") == LIVE
    assert all(name in answer.words for name in names)
    assert f"{LIVE + 2} active operations" in (await web.shows("/", "2 more are active")).words


async def test_names_may_hold_anything(service, web, client):
    await service.create_table(EVIL)
    operation = await service.start(
        EVIL,
        kind="per_object",
        object="o<img src=x onerror=alert(1)>",
        argument={"partitions": 2},
        started_by="<b>me</b>",
    )
    await mark(client, operation, "0", error="</p><script>")
    await service.ended(operation)
    paths = ["/", url("/table", EVIL), url("/operation", str(operation)), "/members"]
    for path in paths:
        answer = await web.shows(path, *([] if path == "/members" else ["<script>alert('x')</script>"]))
        assert "<script>alert" not in answer.text
        assert "<img src=x" not in answer.text
        assert "<b>me" not in answer.text
        assert "\u202e" not in answer.text
        for href in re.findall(r'href="(/(?:table|operation)\?[^"]*)"', answer.text):
            assert (await web.get(unescape(href))).status == 200


async def test_a_record_that_cannot_be_read_hides_nothing_else(service, web, client):
    await service.create_table("broken")
    await client.put(client.keyspace.table("broken").table, b'{"version": 99}')
    words = (await web.shows("/", "CORRUPT_RECORD")).words
    assert "layout 99" in words
    assert "idle: no operation has run yet" in words


@pytest.mark.parametrize(("outcome", "amiss"), [("success", False), ("failed", True), ("cancelled", True)])
async def test_a_failed_operation_has_no_green_bar_and_integers_stay_integers(
    service, web, client, outcome, amiss
):
    """U1: a validation whose jobs are all done has failed all the same, if its rules are broken."""
    ended = OperationId("t", "validate", 1)
    facts = {"checkedRows": 3, "snapshotId": LARGE}
    record = HistoryRecord(outcome=outcome, partition_count=4, succeeded=4, facts=facts)
    await client.put(client.keyspace.table("t").history(ended), encode(record))
    text = (await web.shows(url("/operation", str(ended)), "4 of 4 jobs done")).text
    assert ('<div class="bar amiss">' in text) is amiss
    assert ('<div class="bar">' in text) is not amiss
    for value in ("3", str(LARGE)):
        assert f">{value}<" in text


@pytest.mark.parametrize("odd", ["text", [1.5], {"name": "s"}, [{"rule": "r", "rows": "many"}]])
async def test_facts_of_any_shape_are_shown(service, web, client, odd):
    """U1: a type may give its facts the names of distop's own; a table can be described as well."""
    ended, names = OperationId("t", "mine", 1), ("bytes", "files", "rows", "series", "violations")
    record = HistoryRecord(outcome="success", facts=dict.fromkeys(names, odd))
    await client.put(client.keyspace.table("t").history(ended), encode(record))
    text = (await web.get(url("/operation", str(ended)))).text
    for name in names:
        assert f"<dt>{name}</dt>" in text
    await web.shows(url("/table", "t"), "mine/1")
    described = await service.tables.DescribeTable(pb.GetTableRequest(name="t"), timeout=10)
    assert described.loaded_by == ""


async def test_a_load_into_a_branch_is_not_the_last_load_of_the_table(service, client):
    keys, counts = client.keyspace.table("t"), {"rows": 3, "files": 1, "bytes": 100}
    for number, facts in ((1, counts), (2, {**counts, "branch": "tests"})):
        record = HistoryRecord(outcome="success", facts=facts)
        await client.put(keys.history(OperationId("t", "ingest", number)), encode(record))
    described = await service.tables.DescribeTable(pb.GetTableRequest(name="t"), timeout=10)
    assert described.loaded_by == "t/ingest/1"


async def test_a_paused_operation_is_not_shown_as_stuck(service, web):
    """U1: nobody serves its type, and yet it is held by somebody."""
    operation = await service.start("t", argument={"partitions": 1})
    await web.shows("/", "stuck on this page")
    request = pb.PauseOperationRequest(name=str(operation), requested_by="ana")
    await service.operations.PauseOperation(request, timeout=10)
    assert "stuck on this page" not in (await web.shows("/", "paused by ana")).text


async def test_a_large_operation_is_drawn_in_a_bounded_number_of_cells(service, web, client):
    operation = await service.start("t", argument={"partitions": 4_000})
    await mark_all(client, operation, map(str, range(3_000)))
    answer = await web.shows(url("/operation", str(operation)), "3,000 of 4,000 jobs done")
    assert answer.text.count("<i ") <= 2000 + 10
    assert "a cell is up to 2 jobs" in answer.words
    cells = (await web.get(url("/api/jobs", str(operation)))).json["cells"]
    assert (len(cells), cells.count("s")) == (2000, 1500)


async def test_many_open_pages_cost_etcd_what_one_does(service, web):
    await web.shows("/", "idle: no operation has run yet")
    answers = await asyncio.gather(*(web.get("/") for _ in range(40)))
    assert {answer.status for answer in answers} == {200}
    # Made at the same few moments, if not at the same one.
    assert len({answer.headers["etag"] for answer in answers}) <= 10


async def test_an_unchanged_page_is_not_sent_again(web):
    first = await web.get("/api/leaders")
    again = await web.get("/api/leaders", if_none_match=first.headers["etag"])
    assert (again.status, again.text) == (304, "")
    assert (await web.get("/api/leaders", if_none_match='"other"')).text == first.text


async def test_an_operation_is_followed_once_and_let_go(service, client):
    operation = await service.start("t", argument={"partitions": 5})
    following = Following(client, idle_s=0.3)
    try:
        seen = [await following.look(operation) for _ in range(5)]
        assert all(one is not None for one in seen)
        assert len(following) == 1
        await mark(client, operation, "3")
        await eventually(lambda: following.look(operation), holds=lambda now: now[1].text(10) == "...s.")
        await eventually(lambda: len(following) == 0)
        assert await following.look(OperationId("t", "noop", 99)) is None
        assert len(following) == 0
    finally:
        await following.close()


async def test_a_followed_page_survives_compaction_and_ends_with_the_operation(service, client):
    operation = await service.start("t", argument={"partitions": 3})
    following = Following(client)
    try:
        assert await following.look(operation)
        await client.compact(await client.revision())
        await mark_all(client, operation, map(str, range(3)))
        await service.ended(operation)
        await eventually(lambda: _over(following, operation))
    finally:
        await following.close()


async def test_counts_and_cells_of_a_look_are_of_one_moment(service, client):
    """U1: a page that is drawn a moment later shows no more cells than it has counted."""
    operation = await service.start("t", argument={"partitions": 3})
    following = Following(client)
    try:
        message, grid = await eventually(lambda: following.look(operation))
        await mark_all(client, operation, ["0", "1"])
        await eventually(lambda: following.look(operation), holds=lambda now: now[0].jobs.succeeded == 2)
        assert (message.jobs.succeeded, grid.text(10)) == (0, "...")
    finally:
        await following.close()


async def _over(following: Following, operation: OperationId) -> bool:
    return await following.look(operation) is None


async def test_json_is_that_of_the_command_line(service, web):
    await service.create_table("a")
    operation = await service.start("a", argument={"partitions": 1})
    tables = (await web.get("/api/tables?page_size=1")).json
    assert [table["name"] for table in tables["tables"]] == ["a"]
    rest = (await web.get(f"/api/tables?page_token={quote(tables['next_page_token'])}")).json
    assert [table["name"] for table in rest["tables"]] == ["t"]
    listed = (await web.get("/api/operations?table=a&states=running,committing")).json["operations"]
    assert [one["name"] for one in listed] == [str(operation)]
    one = (await web.get(url("/api/operation", str(operation)))).json
    assert (one["state"], one["jobs"]["total"]) == ("running", 1)
    assert (await web.get("/api/watermarks?table=a")).json["watermarks"] == []


async def test_bad_requests_get_a_code(web):
    """U3."""
    for path, status, code in (
        ("/api/table", 400, "INVALID_ARGUMENT"),
        ("/api/table?name=nowhere", 404, "TABLE_NOT_FOUND"),
        ("/api/table?name=_coordinators", 400, "INVALID_NAME"),
        ("/api/operation?name=a/b", 400, "INVALID_NAME"),
        ("/api/operation?name=a/noop/99999", 404, "OPERATION_NOT_FOUND"),
        ("/api/operations?states=sleeping", 400, "INVALID_ARGUMENT"),
        ("/api/tables?page_size=-1", 400, "INVALID_ARGUMENT"),
        ("/api/tables?page_size=99999999999999999999", 400, "INVALID_ARGUMENT"),
        ("/api/tables?page_token=%00", 400, "INVALID_ARGUMENT"),
        ("/table?name=nowhere&page=x", 400, "INVALID_ARGUMENT"),
        ("/table?name=" + "x" * 600, 400, "INVALID_NAME"),
        ("/operation?name=%ff", 400, "INVALID_NAME"),
        ("/nowhere", 404, "NOT_FOUND"),
        ("/api/nowhere", 404, "NOT_FOUND"),
        ("/api/", 404, "NOT_FOUND"),
        ("/static/../web.py", 404, "NOT_FOUND"),
    ):
        answer = await web.get(path)
        assert answer.status == status, path
        told = answer.json["error"]["code"] if path.startswith("/api") else answer.words
        assert code in told, path


async def test_nothing_can_be_changed(web):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (await web.get("/", method=method)).status == 405
    assert (await web.get("/", method="HEAD")).status == 200


async def test_a_browser_is_kept_in_its_place(web):
    for path in ("/", "/api/tables", "/static/page.js", "/nowhere"):
        headers = (await web.get(path)).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    html = (await web.get("/")).text
    assert "style=" not in html
    assert 'hx-get="/"' in html
    assert set(re.findall(r'(?:src|href)="(?![/#])([^"]*)"', html)) == set()
    kinds = {"page.css": "text/css", "icon.svg": "image/svg"}
    kinds |= dict.fromkeys(("htmx.min.js", "page.js"), "text/javascript")
    for name, kind in kinds.items():
        assert (await web.get(f"/static/{name}")).headers["content-type"].startswith(kind)


async def test_a_page_on_loopback_answers_to_loopback_names_only(web):
    """A web site that points its own name at 127.0.0.1 must not read it (DNS rebinding)."""
    names = {"localhost:7071": 200, "127.0.0.1": 200, "[::1]:1": 200, "evil.example:7071": 421, "": 421}
    for host, status in names.items():
        assert (await web.get("/api/tables", Host=host)).status == status, host


async def test_an_etcd_that_is_away_is_named_within_the_deadline(tmp_path: Path, prefix: str):
    """U4: and the page is well again when etcd is."""
    with EtcdProcess(tmp_path) as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, timeout_s=2.0)
        async with page(config) as (service, web):
            await service.create_table("t")
            await web.shows("/", "idle: no operation has run yet")
            etcd.suspend()
            try:
                await eventually(lambda: _unavailable(web, "/"))
                paths = ("/api/tables", "/members", "/api/jobs?name=t/noop/1")
                assert all(await asyncio.gather(*(_unavailable(web, path) for path in paths)))
                assert (await web.get("/metrics")).status == 200
            finally:
                etcd.resume()
            await web.shows("/", "idle: no operation has run yet", timeout_s=20)


async def _unavailable(web: Web, path: str) -> bool:
    """Whether the path says in time that etcd is away; it may still show what it has shown a moment ago."""
    began = time.monotonic()
    answer = await web.get(path)
    assert time.monotonic() - began < 6
    assert answer.status == 200 or (answer.status, "ETCD_UNAVAILABLE" in answer.text) == (503, True)
    return answer.status == 503


async def test_the_page_is_served_before_etcd_answers(tmp_path: Path, prefix: str):
    etcd = EtcdProcess(tmp_path)
    config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, timeout_s=0.5)
    coordinator = Coordinator(config_of(config, web="127.0.0.1:0"))
    task = asyncio.create_task(coordinator.run())
    try:
        await eventually(lambda: coordinator.web_address)
        answer = await Web(coordinator.web_address).get("/")
        assert (answer.status, "ETCD_UNAVAILABLE" in answer.text) == (503, True)
        assert "a coordinator without a lease" in answer.words
    finally:
        coordinator.stop()
        await task


async def test_an_address_that_is_taken_is_named(etcd_config, web):
    second = Coordinator(config_of(etcd_config, web=web.address))
    with pytest.raises(Unavailable, match="cannot listen on") as caught:
        await second.run()
    assert caught.value.code == "ADDRESS_IN_USE"


@pytest.mark.parametrize("web", ["7071", "localhost:", ":7071", "localhost:http", "localhost:70000"])
def test_a_malformed_address_is_named(web):
    with pytest.raises(InvalidArgument, match="is not host:port") as caught:
        CoordinatorConfig(web=web)
    assert caught.value.details == {"field": "web"}


async def test_a_stop_is_not_held_up_by_open_connections(etcd_config):
    async with page(etcd_config) as (_, web):
        open_connection = http.client.HTTPConnection(web.address, timeout=10)
        await asyncio.to_thread(open_connection.request, "GET", "/")
        assert (await asyncio.to_thread(open_connection.getresponse)).status == 200
        began = time.monotonic()
    assert time.monotonic() - began < 5
    open_connection.close()
    with pytest.raises(OSError):
        await web.get("/")


async def test_metrics_follow_what_happens(service, web, client):
    done = await service.start("t", argument={"partitions": 4})
    await mark_all(client, done, map(str, range(4)))
    await service.ended(done)
    going = await service.start("t", argument={"partitions": 10})
    await mark(client, going, "0")
    wanted = [
        'distop_operations_started_total{type="noop"} 2.0',
        'distop_operations_finished_total{outcome="success",type="noop"} 1.0',
        'distop_operation_duration_seconds_count{outcome="success",type="noop"} 1.0',
        'distop_operations_active{state="running",type="noop"} 1.0',
        'distop_jobs_finished_total{state="success",type="noop"} 5.0',
        'distop_jobs_unfinished{type="noop"} 9.0',
        'distop_elections_total{outcome="won"} 1.0',
        "distop_tables_led 1.0",
        'distop_tables{condition="blocked"} 0.0',
        "distop_incarnations_total 1.0",
        "distop_planning 0.0",
        'distop_etcd_call_seconds_count{call="Txn"}',
        "process_resident_memory_bytes",
    ]
    await eventually(lambda: web.get("/metrics"), holds=lambda page: all(one in page.text for one in wanted))
    answer = await web.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.rstrip().endswith("# EOF")


async def test_two_coordinators_of_one_process_count_apart(etcd_config):
    async with page(etcd_config) as (service, web), page(etcd_config) as (_, other):
        await service.create_table("t")
        await service.start("t", argument={"partitions": 1})
        line = 'distop_operations_started_total{type="noop"} 1.0'
        assert line in (await web.get("/metrics")).text
        assert line not in (await other.get("/metrics")).text


async def test_keys_that_cannot_be_read_are_counted(etcd_config: EtcdConfig, client: EtcdClient) -> None:
    async with page(etcd_config) as (_, web):

        async def skipped() -> float:
            text = (await web.get("/metrics")).text
            [count] = re.findall(r"^distop_etcd_keys_skipped_total (.*)", text, re.MULTILINE)
            return float(count)

        before = await skipped()
        await client.put(client.keyspace.active + b"\xff", b"")
        await eventually(skipped, holds=lambda count: count > before)


async def test_watches_that_break_are_counted(tmp_path: Path, prefix: str):
    with EtcdProcess(tmp_path) as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)
        async with page(config) as (_, web):
            assert "distop_etcd_watches_broken_total 0.0" in (await web.get("/metrics")).text
            etcd.stop()
            etcd.start()
            some = re.compile(r"^distop_etcd_watches_broken_total (?!0\.0$)\d", re.MULTILINE)
            await eventually(lambda: web.get("/metrics"), holds=lambda page: some.search(page.text))
