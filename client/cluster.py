"""The processes of the service, findings of the doctor, the audit trail, and the calls on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from distop.client.calls import PAGE_SIZE, Calls, models
from distop.client.connection import Connection, make_request, resumed
from distop.client.model import Model, ModelEnum
from distop.proto import distop_pb2 as pb


@dataclass(frozen=True, kw_only=True, slots=True)
class Member(Model):
    """A live process of the service."""

    id: str
    """Id of this incarnation: a restarted process is another member."""
    role: str
    """``coordinator`` or ``executor``."""
    address: str = ""
    host: str = ""
    pid: int = 0
    started_at: datetime | None = None
    types: tuple[str, ...] = ()
    """Operation types an executor serves."""
    draining: bool = False
    """A coordinator that leads nothing as long as another one can; it still answers calls."""
    version: str = ""
    """Version of distop; empty: unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader(Model):
    """The coordinator that drives a table."""

    table: str
    member: str
    address: str = ""
    epoch: int = 0
    """The fencing token: the create revision of the leader's key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry(Model):
    """One control action."""

    id: str
    at: datetime | None = None
    action: str
    """Such as ``start``, ``cancel``, ``pause``, ``create-table``."""
    target: str
    """The object of the action: an operation, a table, a member."""
    by: str = ""
    """Who did it: the verified name, or otherwise the name that the caller stated."""
    claimed_by: str = ""
    """The name that the caller stated, where :attr:`by` is verified."""
    address: str = ""
    """The address of the caller."""
    table: str = ""
    """The table of its trail; empty: the installation's."""
    cursor: str = ""
    """Its position in the trail: to list what was written after it."""
    reason: str = ""
    run: str = ""
    """Of a start and of a change of a table its ``run``; of other actions the id of their call."""
    argument: dict[str, Any] = field(default_factory=dict)
    """Of a start: the argument, as :attr:`Operation.argument`; and once that operation is over:"""
    outcome: str = ""
    """``success``, ``failed`` or ``cancelled``. Of other actions: ``done``, or ``denied``."""
    rows: int | None = None
    bytes: int | None = None
    error_code: str = ""


class Severity(ModelEnum):
    """The severity of a finding."""

    NOTICE = "notice"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Something does not progress, or may be lost; what is published is right."""
    ERROR = "error"
    """An invariant is broken."""
    UNKNOWN = "unknown"
    """A severity of a newer service."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(Model):
    """A problem that the doctor has found, and its remedy."""

    code: str
    """A stable code."""
    severity: Severity
    table: str = ""
    operation: str = ""
    sentence: str = ""
    """What is wrong."""
    remedy: str = ""
    """What to do."""
    fixable: bool = False
    """Whether the doctor can repair it."""
    fixed: bool = False
    """Whether it has."""
    outcome: str = ""
    """The result of the attempt to repair it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """All findings, and how much was examined."""

    findings: tuple[Finding, ...] = field(default=())
    tables: int = 0
    operations: int = 0

    @property
    def wrong(self) -> bool:
        """Whether an invariant is broken and was not repaired."""
        return any(not finding.fixed and finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def warned(self) -> bool:
        """Whether there is a warning that was not repaired."""
        return any(not finding.fixed and finding.severity is Severity.WARNING for finding in self.findings)


DIAGNOSIS_SILENCE_S = 15.0
"""Seconds without a heartbeat after which the next coordinator makes the diagnosis."""


async def diagnose(connection: Connection, request: pb.DiagnoseRequest) -> Diagnosis:
    """Ask a coordinator; when its stream breaks another one starts again, which is harmless.

    A finding that an earlier one has repaired is not found again, so it is kept from the broken stream.
    """
    fixed: dict[tuple[str, str, str, str], Finding] = {}
    findings: list[Finding] = []

    def begin() -> pb.DiagnoseRequest:
        for finding in findings:
            if finding.fixed:
                fixed[finding.code, finding.table, finding.operation, finding.sentence] = finding
        findings.clear()
        return request

    stream = resumed(connection, "Diagnose", begin, silence_s=DIAGNOSIS_SILENCE_S)
    async with aclosing(stream) as messages:
        async for message in messages:
            findings += [Finding.from_proto(finding) for finding in message.findings]
            if message.done:
                all_findings = (*fixed.values(), *findings)
                return Diagnosis(findings=all_findings, tables=message.tables, operations=message.operations)
    raise AssertionError("unreachable: streams follow each other until one is done")


class ClusterCalls(Calls):
    """The part of :class:`~distop.client.aio.AsyncClient` for the service itself."""

    async def members(self) -> Sequence[Member]:
        """The live coordinators and executors."""
        return [Member.from_proto(member) for member in (await self._call("ListMembers")).members]

    async def leaders(self) -> Sequence[Leader]:
        """The leaders of tables. Idle tables have none."""
        return [Leader.from_proto(leader) for leader in (await self._call("ListLeaders")).leaders]

    async def diagnose(
        self, table: str = "", *, deep: bool = False, fix: bool = False, patience_s: float = 10.0
    ) -> Diagnosis:
        """Check one table or the whole installation for problems.

        Parameters
        ----------
        deep:
            Also read the manifests of tables and all records, and check that their files exist.
        fix:
            Repair what is safe to repair.
        patience_s:
            Seconds that a table may be without a leader, or an operation without a runner.
        """
        request = make_request(
            pb.DiagnoseRequest, table=table, deep=deep, fix=fix, requested_by=self._connection.identity
        )
        request.patience.FromNanoseconds(int(patience_s * 1e9))
        return await diagnose(self._connection, request)

    async def remove_key(self, key: str, *, fix: bool = False) -> Diagnosis:
        """Remove a key of the service in etcd that cannot be read. Irrevocable, and safe to repeat.

        Returns what is wrong with it; nothing if it does not exist.

        Parameters
        ----------
        key:
            As a finding of :meth:`diagnose` names it.
        fix:
            Otherwise it is only checked.

        Raises
        ------
        PreconditionFailed
            It can be read, or it says what its table has.
        InvalidArgument
            It is no key of this installation.
        """
        reply = await self._control("RemoveKey", key=key, fix=fix)
        findings = (Finding.from_proto(reply.finding),) if reply.HasField("finding") else ()
        return Diagnosis(findings=findings)

    async def drain(self, member: str, reason: str = "", *, undo: bool = False) -> Member:
        """Make a coordinator hand over its tables and take none; it still answers calls.

        Parameters
        ----------
        member:
            Its id, or its address.
        undo:
            Let it lead again.

        Raises
        ------
        PreconditionFailed
            It is the last coordinator that is not draining.
        """
        reply = await self._control("DrainCoordinator", member=member, reason=reason, undo=undo)
        return Member.from_proto(reply)

    def audit(
        self, table: str = "", *, after: str = "", page_size: int = PAGE_SIZE
    ) -> AsyncGenerator[AuditEntry, None]:
        """The audit trail, newest first: of one table, or of the installation.

        ``after``: only what was written after the entry with this cursor; ``"0"``: all kept entries.
        """
        fields = {"table": table, "after": after, "page_size": page_size}
        return models(self._listed("ListAudit", "entries", **fields), AuditEntry)
