"""Alerts that a webhook gets while the process that sends them is killed, or the webhook is away."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from distop.cli.main import app
from distop.client import AsyncClient
from distop.coordinator.alerts.conditions import count_tables
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from support.etcd.jobs import mark
from support.etcd.lossy import LossyClient
from support.services import backlogs
from support.services.coordinators import config_of, running
from support.services.executing import Child
from support.tables.nowhere import nowhere
from support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow("starts a process of the command line three times")]

TOKEN = "t0p-secret-t0ken"


class Receiver:
    """A webhook that keeps what it accepts."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        self.status = 204
        self.refused = 0
        self.url = ""
        self.victim: Child | None = None
        """Killed when it has sent an alert, before it learns that this has arrived."""

    def names(self, status: str) -> list[str]:
        return [alert["name"] for alert in list(self.alerts) if alert["status"] == status]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if receiver.status == 204:
                receiver.alerts.append(json.loads(body))
            receiver.refused += receiver.status != 204
            receiver.tokens.add(self.headers.get("authorization", ""))
            if (victim := receiver.victim) is not None:
                victim.kill()
                return
            self.send_response(receiver.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook/s3cret-path"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


def alerting(etcd: EtcdConfig, folder: Path, receiver: Receiver) -> Child:
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    words = ["-m", "distop.cli.main", "alert", "run", "--every", "0.1s", "--late-after", "late=1s"]
    words += ["--token-file", str(token), "--page", "https://distop.example/"]
    settings = {"DISTOP_ALERT_WEBHOOK": receiver.url, "NO_PROXY": "127.0.0.1"}
    return Child(etcd, folder, *words, **settings)


async def test_each_alert_arrives_and_its_end_whenever_the_process_is_killed(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient, parks_soon: None
) -> None:
    """Between the POST and its record, too; and however long the webhook is away."""
    async with (
        running(config_of(etcd_config)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as sdk,
    ):
        for table in ("t", "parks", "fails", "late"):
            await sdk.create_table(table, nowhere())
        with receiving() as receiver:
            with alerting(etcd_config, tmp_path, receiver) as first:
                # From here on failures count.
                await eventually(lambda: client.get(client.keyspace.alert_cursor), holds=lambda kv: kv.exists)
                first.kill()
            failed = OperationId.parse((await sdk.start("fails", "noop", {"partitions": 1})).name)
            assert await mark(client, failed, "0", error="no such file", code="BAD_ROW")
            hook = {"log": str(tmp_path / "log"), "raises": 1000}
            parked = OperationId.parse((await sdk.start("parks", "hooked", hook)).name)
            assert await mark(client, parked, "0")
            await backlogs.put(client, "b")
            await eventually(lambda: backlogs.applied(client), holds=lambda names: names == ["b"])
            await backlogs.put(client, "a")  # it sorts before an applied one
            await sdk.table("late").set_watermark("files", "0", "7")
            expected = {"failed:fails/noop", f"parked:{parked}", "blocked:t/a", "late:late"}

            killed = list[Child]()
            for _ in range(2):
                with alerting(etcd_config, tmp_path, receiver) as receiver.victim:
                    assert await receiver.victim.exit_code() == -9
                    killed.append(receiver.victim)
            receiver.victim = None
            assert len(receiver.names("firing")) == 2
            assert not (await client.scan(client.keyspace.alerts)).kvs
            receiver.status = 503
            with alerting(etcd_config, tmp_path, receiver) as alive:
                await eventually(lambda: receiver.refused > 1)
                receiver.status = 204
                await eventually(lambda: expected <= set(receiver.names("firing")))
                await eventually(
                    lambda: client.scan(client.keyspace.alerts), holds=lambda it: len(it.kvs) == 4
                )
                assert len(await asyncio.to_thread(listed, etcd_config)) == 4
                assert not receiver.names("resolved")
                assert await count_tables(client) == {"blocked": 1, "parked": 1, "waiting": 0}

                await sdk.operation(str(parked)).abort()
                await backlogs.unblock(client, client.keyspace.table("t"), "a", skip=True)
                again = OperationId.parse((await sdk.start("fails", "noop", {"partitions": 1})).name)
                assert await mark(client, again, "0")
                await sdk.table("late").drop()
                await eventually(lambda: expected <= set(receiver.names("resolved")))
                await eventually(
                    lambda: client.scan(client.keyspace.alerts), holds=lambda it: len(it.kvs) <= 1
                )
            logs = "".join(child.log.read_text() for child in (first, *killed, alive))
    assert receiver.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in logs
    assert "s3cret-path" not in logs
    alert = next(alert for alert in receiver.alerts if alert["kind"] == "failed")
    page = f"https://distop.example/operation?name={str(failed).replace('/', '%2F')}"
    fields = ("table", "operation", "instance", "code", "link")
    assert [alert[field] for field in fields] == ["fails", str(failed), 1, "JOB_FAILED", page]


def listed(etcd: EtcdConfig) -> list[dict[str, Any]]:
    words = ["--output", "json", "alert", "list", "--etcd", ",".join(etcd.endpoints), "--prefix", etcd.prefix]
    result = CliRunner().invoke(app, [*words, "--late-after", "late=1s"])
    assert result.exit_code == 0, result.output
    alerts: list[dict[str, Any]] = json.loads(result.stdout)
    return alerts
