"""What a container engine asks a coordinator: whether it lives, and whether it is ready."""

from pathlib import Path

import httpx

from distop.coordinator.access.authentication import IdentityConfig
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.etcd.proxy import Proxy
from support.services.coordinators import config_of, running, through
from support.services.leases import TTL_S
from support.services.tokens import token_file
from support.waiting import eventually


async def test_a_coordinator_cut_off_from_etcd_is_alive_and_not_ready(
    etcd: EtcdProcess, etcd_config: EtcdConfig
) -> None:
    """To start it anew would not help; to send callers to another one does."""
    async with (
        Proxy(etcd.endpoint) as proxy,
        running(
            config_of(through(etcd_config, proxy.endpoint), web="127.0.0.1:0", lease_ttl_s=TTL_S)
        ) as coordinator,
        httpx.AsyncClient(base_url=f"http://{coordinator.web_address}", timeout=10) as engine,
    ):

        async def says(path: str, status: int) -> bool:
            return (await engine.get(path)).status_code == status

        await eventually(lambda: says("/readyz", 200))
        await proxy.refuse()
        await eventually(lambda: says("/readyz", 503))
        assert await says("/livez", 200)
        await proxy.accept()
        await eventually(lambda: says("/readyz", 200))


async def test_probes_need_no_token_and_show_nothing(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """S3: a kubelet has none."""
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, ("root",)))
    async with (
        running(config_of(etcd_config, identity=identity, web="127.0.0.1:0")) as coordinator,
        httpx.AsyncClient(base_url=f"http://{coordinator.web_address}", timeout=10) as engine,
    ):
        assert (await engine.get("/metrics")).status_code == 401
        assert [(await engine.get(path)).text for path in ("/livez", "/readyz")] == ["alive\n", "ready\n"]
