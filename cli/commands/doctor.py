"""The commands that check an installation and back it up: doctor, backup."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distop.cli.commands.tables import PANEL
from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_duration
from distop.cli.options.services import Etcd
from distop.cli.options.session import Connected, WithOutput
from distop.cli.output.exits import SOMETHING_WRONG
from distop.errors import InvalidArgument

if TYPE_CHECKING:
    from distop.client import Diagnosis
    from distop.coordinator.recovery.backup import BackupManifest
    from distop.metastore.etcd.config import EtcdConfig


app = typer.Typer()


@command(app, rich_help_panel=PANEL)
def doctor(
    session: Connected,
    etcd: Etcd,
    table: Annotated[
        str, typer.Option(metavar="NAME", help="Only this table. Default: all, the members and etcd.")
    ] = "",
    fix: Annotated[bool, typer.Option("--fix", help="Repair what is safe to repair, and report it.")] = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also read manifests and records, and check that files exist."),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings make the exit code 22, too.")] = False,
    patience: Annotated[
        str, typer.Option(metavar="TIME", help="How long a table may be without a leader or a runner.")
    ] = "10s",
    after_restore: Annotated[
        bool,
        typer.Option(
            "--after-restore",
            help="etcd was restored from a backup: find tables that are ahead of it; with --fix, move "
            "head and watermarks forward. Connects to etcd directly, while no service runs.",
        ),
    ] = False,
    published: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="After a restore: this metadata file was published. Repeatable."),
    ] = None,
    look_in: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="After a restore: tables may lie here, too. Repeatable."),
    ] = None,
    remove_key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Only this key, which cannot be read; with --fix, remove it. Any other is refused.",
        ),
    ] = "",
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="After a restore that cannot be detected: the backup was not made by distop."
        ),
    ] = False,
) -> int:
    """Check an installation for problems, and say what to do.

    Looks for operations that no coordinator drives, keys and files without an owner, watermarks that do not
    match the rows, clock skew, and a full etcd. Checks transient findings again before it reports them.

    Exit code 22 for a broken invariant (that was not repaired); with --strict also for warnings: work that
    does not go on without a decision, or may be lost.
    """
    if (published or look_in or anyway) and not after_restore:
        raise InvalidArgument(
            "--published, --look-in and --anyway belong to --after-restore",
            details={"field": "after_restore"},
        )
    if remove_key and (table or deep or after_restore):
        raise InvalidArgument(
            "--remove-key is about one key, and not for --table, --deep or --after-restore",
            details={"field": "remove_key"},
        )
    if remove_key:
        found = session.client.remove_key(remove_key, fix=fix)
    elif after_restore:
        found = _after_restore(
            etcd.config(), fix, table, published=published or (), folders=look_in or (), anyway=anyway
        )
    else:
        found = session.client.diagnose(
            table, deep=deep, fix=fix, patience_s=parse_duration(patience, "patience")
        )
    session.out.show(found)
    return SOMETHING_WRONG if found.wrong or (strict and found.warned) else 0


def _after_restore(config: EtcdConfig, fix: bool, table: str, **more: Any) -> Diagnosis:
    from distop.client import Diagnosis, Finding
    from distop.coordinator.doctor.findings import finding_message
    from distop.coordinator.recovery.mending import Mending, mend
    from distop.metastore.etcd.client import EtcdClient
    from distop.proto.identity import default_identity

    what = Mending(fix=fix, table=table, by=default_identity(), **more)

    async def look() -> Diagnosis:
        client = EtcdClient(config)
        try:
            async with aclosing(mend(client, what, now=time.time())) as reported:
                findings = [Finding.from_proto(finding_message(one)) async for one in reported]
        finally:
            await client.close()
        tables = {one.table for one in findings if one.table}
        return Diagnosis(findings=tuple(findings), tables=len(tables))

    return asyncio.run(look())


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

    manifest = look(file) if check else _backed_up(etcd.config(), file, parse_duration(limit, "limit"))
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


def _backed_up(config: EtcdConfig, file: Path, limit_s: float) -> BackupManifest:
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
