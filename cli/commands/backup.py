"""The command that backs up etcd: backup."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distop.cli.commands.tables import PANEL
from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_duration
from distop.cli.options.services import Etcd
from distop.cli.options.session import WithOutput

if TYPE_CHECKING:
    from distop.coordinator.recovery.backup import BackupManifest
    from distop.metastore.etcd.config import EtcdConfig

app = typer.Typer()


@command(app, rich_help_panel=PANEL)
def backup(
    etcd: Etcd,
    out: WithOutput,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to create, together with FILE.json.")],
    check: Annotated[
        bool, typer.Option("--check", help="Create none: check that FILE is unchanged.")
    ] = False,
    limit: Annotated[str, typer.Option(metavar="DURATION", help="How long etcd may take to send it.")] = "1h",
) -> None:
    """Write a snapshot of etcd to a file, with the data to verify it.

    Connects to etcd directly and needs no coordinator; if etcd has users, it needs root. To restore it, see
    docs/operating.md.

    Example: distop backup --etcd 127.0.0.1:2379 distop.db
    """
    from distop.coordinator.recovery.backup import check as look

    manifest = look(file) if check else _made(etcd.config(), file, parse_duration(limit, "limit"))
    facts = {
        "file": str(file),
        "bytes": manifest.bytes,
        "revision": manifest.revision,
        "sha256": manifest.sha256,
        "cluster": manifest.cluster_id,
        "etcd": manifest.etcd,
        "prefix": manifest.prefix,
        "distop": manifest.distop,
        "at": datetime.fromtimestamp(manifest.at, UTC).isoformat(timespec="seconds"),
        "tables": manifest.tables,
        "operations": manifest.operations,
    }
    out.facts("whole" if check else "backed up", facts)


def _made(config: EtcdConfig, file: Path, limit_s: float) -> BackupManifest:
    from distop.coordinator.recovery.backup import back_up
    from distop.metastore.etcd.client import EtcdClient
    from distop.proto.identity import default_identity

    async def make() -> BackupManifest:
        client = EtcdClient(config)
        try:
            return await back_up(client, file, by=default_identity(), limit_s=limit_s)
        finally:
            await client.close()

    return asyncio.run(make())
