"""Calls on the processes of the service: members, diagnosis, and the audit trail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from operator import attrgetter

from distop.client.calls.base import PAGE_SIZE, Calls, models
from distop.client.calls.following import diagnose
from distop.client.models.cluster import AuditEntry, Leader, Member
from distop.client.models.diagnosis import Diagnosis, Finding
from distop.client.transport.connection import make_request
from distop.proto import distop_pb2 as pb

FOLLOW_EVERY_S = 2.0
"""Seconds between two lists of the audit trail, for those who follow it."""


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
            pb.DiagnoseRequest, table=table, deep=deep, fix=fix, requested_by=self.identity
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
        found = (Finding.from_proto(reply.finding),) if reply.HasField("finding") else ()
        return Diagnosis(findings=found)

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

        ``after``: only what was written after the entry with this cursor.
        """
        fields = {"table": table, "after": after, "page_size": page_size}
        return models(self._listed("ListAudit", "entries", **fields), AuditEntry)

    async def follow_audit(
        self, table: str = "", *, after: str = "", every_s: float = FOLLOW_EVERY_S
    ) -> AsyncGenerator[AuditEntry, None]:
        """New entries of the audit trail, in the order in which they were written: of one table, or of the
        installation. Lists them again and again, and does not end normally.

        Parameters
        ----------
        after:
            The cursor of the last known entry; empty: from now on; ``"0"``: all stored entries first.
        every_s:
            Seconds between two lists.
        """
        while True:
            entries: list[pb.AuditEntry] = []
            size = PAGE_SIZE if after else 1
            request = make_request(pb.ListAuditRequest, table=table, after=after, page_size=size)
            while True:
                page = await self._connection.call(attrgetter("ListAudit"), request)
                entries += page.entries if after else ()
                if not (after and page.next_page_token):
                    break
                request.page_token = page.next_page_token
            for message in sorted(entries, key=_written):
                yield AuditEntry.from_proto(message)
            after = page.cursor
            await asyncio.sleep(every_s)


def _written(entry: pb.AuditEntry) -> tuple[int, str]:
    """When an entry was written."""
    revision, _, ident = entry.cursor.partition(".")
    return int(revision), ident
