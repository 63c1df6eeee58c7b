"""What executors and sidecars tell a scrape, against what they have done. Real processes."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from distop.client import OperationState
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.members.lease import LeaseSession
from support.etcd.lossy import LossyClient
from support.etcd.proxy import Proxy
from support.services.certs import put_pair
from support.services.coordinators import through
from support.services.executing import Child, start_operation, take
from support.services.sidecars import connected, task
from support.services.sidecars import session as session
from support.services.sidecars import sidecar_folder as sidecar_folder
from support.services.whole import coordinated, write_csv
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("starts services as processes, and cuts one off for longer than its lease"),
]


@dataclass
class Scraped:
    """A service that serves its metrics."""

    service: Child
    http: httpx.AsyncClient

    async def values(self) -> dict[str, float]:
        """Samples as ``name{label=value,...}``."""
        answer = await self.http.get("/metrics")
        assert answer.status_code == 200
        samples = [one for family in text_string_to_metric_families(answer.text) for one in family.samples]
        return {
            one.name + "".join(f"{{{name}={value}}}" for name, value in sorted(one.labels.items())): one.value
            for one in samples
        }

    async def says(self, path: str, status: int) -> bool:
        return (await self.http.get(path)).status_code == status


@asynccontextmanager
async def scraped(
    etcd: EtcdConfig, folder: Path, *command: str, verify: Any = True
) -> AsyncIterator[Scraped]:
    with Child(etcd, folder, "-m", "distop.cli.main", *command, "--metrics", "localhost:0") as service:

        def address() -> str:
            found = re.search(r"http_listening.*?(localhost:\d+)", service.log.read_text())
            return found[1] if found else ""

        await eventually(lambda: bool(address()) or not service.running, 90)
        assert service.running, service.log.read_text()
        scheme = "http" if verify is True else "https"
        async with httpx.AsyncClient(base_url=f"{scheme}://{address()}", timeout=10, verify=verify) as http:
            yield Scraped(service, http)


async def test_an_executor_counts_what_it_runs(
    etcd: EtcdProcess, etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    csv = write_csv(tmp_path / "in", "a.csv", 0, 30)
    given = ["executor", "--master", "none", "--allow-source", "*", "--allow-location", "*"]
    async with (
        Proxy(etcd.endpoint) as proxy,
        coordinated(etcd_config, tmp_path, client) as service,
        scraped(through(etcd_config, proxy.endpoint), tmp_path, *given) as executor,
    ):
        await eventually(lambda: executor.says("/readyz", 200))
        done = await service.ingest(csv)
        assert done.state is OperationState.SUCCEEDED
        await eventually(
            lambda: executor.values(),
            holds=lambda found: found.get("distop_runs_ended_total{end=settled}{type=ingest}") == 1,
        )
        values = await executor.values()
        assert values["distop_runs"] == 0
        assert values["distop_runs_taken_total{type=ingest}"] == 1
        assert values["distop_marks_total{outcome=won}"] == values["distop_mark_groups_total"] == 1
        assert values["distop_marks_total{outcome=unanswered}"] == values["distop_marks_waiting"] == 0
        incarnations = values["distop_incarnations_total"]
        assert 0 < values["distop_lease_seconds"] <= 5
        assert values["distop_etcd_call_seconds_count{call=Txn}"] > 0
        assert not [name for name in values if "default" in name or "{table" in name]
        assert await executor.says("/", 404)
        # Cut off, it lives, and is not ready: its lease has run out.
        await proxy.refuse()
        await eventually(lambda: executor.says("/readyz", 503))
        assert (await executor.values())["distop_lease_seconds"] == 0
        assert await executor.says("/livez", 200)
        await proxy.accept()
        await eventually(lambda: executor.says("/readyz", 200), 90)
        assert (await executor.values())["distop_incarnations_total"] > incarnations > 0
        executor.service.terminate()
        assert await executor.service.exit_code() == 0


async def test_a_sidecar_counts_what_its_tasks_send(
    client: LossyClient,
    session: LeaseSession,
    etcd_config: EtcdConfig,
    sidecar_folder: SidecarFolder,
    tmp_path: Path,
) -> None:
    ca = trustme.CA()
    cert, key = put_pair(tmp_path, "sidecar", ca.issue_cert("localhost"))
    given = ["--tls-cert", cert, "--tls-key", key]
    verify = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode())
    arg = await start_operation(client, jobs=700)
    taken = await take(client, arg, session)
    async with scraped(
        etcd_config, tmp_path, "sidecar", "--folder", str(sidecar_folder.folder), *given, verify=verify
    ) as sidecar:
        await eventually(lambda: sidecar.says("/readyz", 200))
        with connected(sidecar_folder, etcd_config) as one:
            assert (await task(one, taken)).won == 700
            assert (await sidecar.values())["distop_tasks_connected"] == 1
        values = await sidecar.values()
        assert values["distop_marks_total{outcome=won}"] == 700
        assert 2 <= values["distop_mark_groups_total"] <= 700
        assert values["distop_tasks_total{answer=accepted}"] == 1
        assert values["distop_tasks_total{answer=refused}"] == 0
        await eventually(sidecar.values, holds=lambda values: not values["distop_tasks_connected"])
        sidecar.service.terminate()
        assert await sidecar.service.exit_code() == 0


@pytest.mark.parametrize("service", ["executor", "sidecar"])
async def test_metrics_that_cannot_be_served_are_refused(
    service: str, etcd_config: EtcdConfig, sidecar_folder: SidecarFolder, tmp_path: Path
) -> None:
    more = ["--master", "none"] if service == "executor" else ["--folder", str(sidecar_folder.folder)]
    command = ["-m", "distop.cli.main", service, *more, "--output", "json", "--metrics"]
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    cases = {f"127.0.0.1:{port}": "ADDRESS_IN_USE", "0.0.0.0:0": "INVALID_ARGUMENT", "9": "INVALID_ARGUMENT"}
    async with taken:
        for address, code in cases.items():
            with Child(etcd_config, tmp_path, *command, address) as refused:
                assert await refused.exit_code() != 0
                assert code in refused.log.read_text()
