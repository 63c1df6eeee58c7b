"""What the doctor found, as the client shows it; and asking it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from distop.client.transport.connection import FIRST_PAUSE_S, Connection, transient
from distop.errors import DistopError, Unavailable
from distop.proto import distop_pb2 as pb

SILENCE_S = 15.0
"""Seconds without a sign of life after which the next coordinator is asked."""

RISKS = frozenset({"ETCD_LOSSY_VERSION"})
"""Warnings of what may happen one day: nothing is wrong yet."""


class Severity(Enum):
    """How bad a finding is."""

    NOTICE = "notice"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Something does not go on, or may be lost; what is published is right."""
    ERROR = "error"
    """Something that must always hold does not."""
    UNKNOWN = "unknown"
    """Of a newer service."""


_SEVERITIES = {pb.NOTICE: Severity.NOTICE, pb.WARNING: Severity.WARNING, pb.ERROR: Severity.ERROR}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something that should not be."""

    code: str
    """Stable."""
    severity: Severity
    table: str = ""
    operation: str = ""
    sentence: str = ""
    """What is wrong."""
    remedy: str = ""
    """What to do."""
    fixable: bool = False
    """Whether the doctor can put it right."""
    fixed: bool = False
    """Whether it has."""
    outcome: str = ""
    """What the attempt to put it right came to."""

    @classmethod
    def from_proto(cls, message: pb.Finding) -> Self:
        return cls(
            code=message.code,
            severity=_SEVERITIES.get(message.severity, Severity.UNKNOWN),
            table=message.table,
            operation=message.operation,
            sentence=message.sentence,
            remedy=message.remedy,
            fixable=message.fixable,
            fixed=message.fixed,
            outcome=message.outcome,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """All findings, and how much was looked at."""

    findings: tuple[Finding, ...] = field(default=())
    tables: int = 0
    operations: int = 0

    @property
    def wrong(self) -> bool:
        """Whether something is wrong and has not been put right. Notices and mere risks do not count."""
        return any(
            not one.fixed and one.severity is not Severity.NOTICE and one.code not in RISKS
            for one in self.findings
        )


async def diagnose(connection: Connection, request: pb.DiagnoseRequest) -> Diagnosis:
    """Ask a coordinator; when its stream breaks another one begins anew, which does no harm.

    What an earlier one has already put right is not found again, so it is kept from the broken stream.
    """
    fixed: dict[tuple[str, str, str, str], Finding] = {}
    began = asyncio.get_running_loop().time()
    while True:
        stream = connection.stream(lambda service: service.cluster.Diagnose, request, silence_s=SILENCE_S)
        findings: list[Finding] = []
        broken: DistopError = Unavailable(f"{connection.address} ended the stream")
        try:
            async with aclosing(stream) as messages:
                async for message in messages:
                    began = asyncio.get_running_loop().time()
                    findings += [Finding.from_proto(finding) for finding in message.findings]
                    if message.done:
                        return Diagnosis(
                            findings=(*fixed.values(), *findings),
                            tables=message.tables,
                            operations=message.operations,
                        )
            connection.turn()
        except DistopError as error:
            if not transient(error):
                raise
            broken = error
        for one in findings:
            if one.fixed:
                fixed[one.code, one.table, one.operation, one.sentence] = one
        if connection.gives_up(asyncio.get_running_loop().time() - began, connection.timeout_s):
            raise broken
        await asyncio.sleep(FIRST_PAUSE_S)
