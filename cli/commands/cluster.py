"""``distop cluster``: the members of an installation, its health and its backup."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_duration
from distop.cli.options.services import Etcd
from distop.cli.options.session import (
    Connected,
    Reason,
    Session,
    WithOutput,
    complete_coordinator,
    complete_table,
)
from distop.cli.output.exits import SOMETHING_WRONG
from distop.coordinator.recovery.backup import BackupManifest, back_up
from distop.coordinator.recovery.backup import check as checked_backup
from distop.errors import InvalidArgument, Unavailable
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.record import decode
from distop.proto.identity import default_identity, own_version

if TYPE_CHECKING:
    from distop.client import Diagnosis

group = typer.Typer()


@command(group)
def members(session: Connected) -> None:
    """Show the live coordinators and executors, and the tables that they lead.

    Example: distop cluster members
    """
    _list_members(session)


def _list_members(session: Session) -> None:
    """Live processes, each with the tables that it leads."""
    led: dict[str, list[str]] = {}
    for leader in session.client.leaders():
        led.setdefault(leader.member, []).append(leader.table)
    listed = (asdict(member) | {"leads": led.get(member.id, [])} for member in session.client.members())
    session.listed("members", listed, 0)


@command(group)
def version(session: Connected) -> None:
    """Show the version of this command, and those of the live members.

    Example: distop cluster version
    """
    members = {member.id: member.version or "not said" for member in session.client.members()}
    session.out.facts("versions", {"distop": own_version(), "members": members})


@command(group)
def drain(
    session: Connected,
    member: Annotated[
        str,
        typer.Argument(
            metavar="COORDINATOR",
            help="Its id or address: see distop cluster members.",
            autocompletion=complete_coordinator,
        ),
    ],
    reason: Reason = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let it lead again.")] = False,
) -> None:
    """Make a coordinator hand over its tables and take none. It still answers calls.

    It lasts until the process ends. Idempotent.

    Example: distop cluster drain 10.0.0.5:7070 --reason 'the host is replaced'
    """
    session.client.drain(member, reason, undo=undo)
    _list_members(session)


@command(group)
def doctor(
    session: Connected,
    etcd: Etcd,
    table: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Only this table. Default: all, the members and etcd.",
            autocompletion=complete_table,
        ),
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

    Example: distop cluster doctor --table flights --deep
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
        diagnosis = session.client.remove_key(remove_key, fix=fix)
    elif after_restore:
        diagnosis = _after_restore(
            etcd.config(), fix, table, published=published or (), folders=look_in or (), anyway=anyway
        )
    else:
        diagnosis = session.client.diagnose(
            table, deep=deep, fix=fix, patience_s=parse_duration(patience, "patience")
        )
    session.out.show(diagnosis)
    return SOMETHING_WRONG if diagnosis.wrong or (strict and diagnosis.warned) else 0


def _after_restore(config: EtcdConfig, fix: bool, table: str, **more: Any) -> Diagnosis:
    from distop.client import Diagnosis, Finding  # not for each probe of a container
    from distop.coordinator.doctor.findings import finding_message
    from distop.coordinator.recovery.mending import Mending, mend

    mending = Mending(fix=fix, table=table, by=default_identity(), **more)

    async def look() -> Diagnosis:
        client = EtcdClient(config)
        try:
            async with aclosing(mend(client, mending, now=time.time())) as reported:
                findings = [Finding.from_proto(finding_message(finding)) async for finding in reported]
        finally:
            await client.close()
        tables = {finding.table for finding in findings if finding.table}
        return Diagnosis(findings=tuple(findings), tables=len(tables))

    return asyncio.run(look())


@command(group)
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

    Example: distop cluster backup --etcd 127.0.0.1:2379 distop.db
    """
    manifest = (
        checked_backup(file) if check else _backed_up(etcd.config(), file, parse_duration(limit, "limit"))
    )
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
    async def make() -> BackupManifest:
        client = EtcdClient(config)
        try:
            return await back_up(client, file, by=default_identity(), limit_s=limit_s)
        finally:
            await client.close()

    return asyncio.run(make())


class ServiceKind(StrEnum):
    coordinator = "coordinator"
    executor = "executor"
    sidecar = "sidecar"


class NoMember(Unavailable):
    """No service of this host is registered in etcd under a lease."""

    code = "NO_MEMBER"
    default_hint = "it may be starting, or etcd may be unreachable: see its log"


@command(group)
def probe(
    etcd: Etcd,
    out: WithOutput,
    kind: Annotated[ServiceKind | None, typer.Argument(help="Check this service. Default: any.")] = None,
) -> None:
    """Exit with code 0 if a service of this host keeps its lease in etcd.

    For the health checks of containers, which have a host name each. A coordinator with --web answers /livez
    and /readyz over HTTP.

    Example: distop cluster probe coordinator
    """

    async def members(config: EtcdConfig) -> list[str]:
        client = EtcdClient(config)
        try:
            keys = client.keyspace
            kvs = [*(await client.scan(keys.coordinators)).kvs, *(await client.scan(keys.executors)).kvs]
        finally:
            await client.close()
        records = [decode(kv.value, MemberRecord, kv.key) for kv in kvs]
        here = [record for record in records if record.host == socket.gethostname()]
        return [record.id for record in here if kind is None or kind == (record.role or "coordinator")]

    if not (alive := asyncio.run(members(etcd.config()))):
        raise NoMember(f"no {kind or 'service'} of {socket.gethostname()} is registered in etcd")
    out.facts("alive", {"members": alive})
