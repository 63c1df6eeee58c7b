"""The health check for container engines: probe."""

from __future__ import annotations

import asyncio
import socket
from enum import StrEnum
from typing import Annotated

import typer

from distop.cli.commands.services import PANEL
from distop.cli.options.bundles import command
from distop.cli.options.services import Etcd
from distop.cli.options.session import WithOutput
from distop.errors import Unavailable

app = typer.Typer()


class Kind(StrEnum):
    coordinator = "coordinator"
    executor = "executor"
    sidecar = "sidecar"


class NoMember(Unavailable):
    """No service of this host is registered in etcd under a lease."""

    code = "NO_MEMBER"
    default_hint = "it may be starting, or etcd may be unreachable: see its log"


@command(app, rich_help_panel=PANEL)
def probe(
    etcd: Etcd,
    out: WithOutput,
    kind: Annotated[Kind | None, typer.Argument(help="Check this service. Default: any.")] = None,
) -> None:
    """Exit with code 0 if a service of this host keeps its lease in etcd.

    For the health checks of containers, which have a host name each. A coordinator with --web answers /livez
    and /readyz over HTTP.
    """
    from distop.metastore.etcd.client import EtcdClient
    from distop.metastore.etcd.config import EtcdConfig
    from distop.metastore.records.member import MemberRecord
    from distop.metastore.records.record import decode

    async def members(config: EtcdConfig) -> list[str]:
        client = EtcdClient(config)
        try:
            keys = client.keyspace
            found = [*(await client.scan(keys.coordinators)).kvs, *(await client.scan(keys.executors)).kvs]
        finally:
            await client.close()
        records = [decode(kv.value, MemberRecord, kv.key) for kv in found]
        here = [one for one in records if one.host == socket.gethostname()]
        return [one.id for one in here if kind is None or kind == (one.role or "coordinator")]

    if not (found := asyncio.run(members(etcd.config()))):
        raise NoMember(f"no {kind or 'service'} of {socket.gethostname()} is registered in etcd")
    out.facts("alive", {"members": found})
