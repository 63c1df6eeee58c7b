"""Rows in quarantine, and the calls that list and read them, and ingest them again."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from distop.client.calls import PAGE_SIZE, NamedCalls, models
from distop.client.model import Model
from distop.client.operations import Operation
from distop.errors import PreconditionFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantine:
    """The quarantined rows of one operation."""

    operation: str
    rows: int
    at: datetime | None = None
    """When the operation finished."""
    folder: str
    """URL of their files."""
    replayed_by: str = ""
    """The operation that has ingested them; empty: none of those that the history still has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantinedRow(Model):
    """A row that could not be read, or did not fit its table."""

    source: str = ""
    """URL of its file, or the topic."""
    unit: str = ""
    """What its number counts, from 1: ``line``, ``row`` or ``element``; or, from 0 in its partition,
    ``offset``."""
    number: int = 0
    partition: int = 0
    column: str = ""
    """The column whose value was bad; empty: the reason is about no single one."""
    reason: str = ""
    raw: str = ""
    """Its text, for people."""
    base64: str = ""
    """Its bytes, where they are no UTF-8; otherwise empty."""
    header: str = ""
    """The line of its file that names the columns, if there is one."""
    cut: bool = False
    """Only the beginning of the row was kept."""
    format: str = ""
    """The format of its text; formats other than ``csv`` and ``jsonl`` have none."""

    @property
    def position(self) -> str:
        """Where it was read, for people: its source, and its number there."""
        partition = f"partition {self.partition}, " if self.unit == "offset" else ""
        return f"{self.source}, {partition}{self.unit} {self.number}"

    @property
    def text(self) -> bytes:
        """The row as its source has it, without the end of its line."""
        return b64decode(self.base64) if self.base64 else self.raw.encode()


class QuarantineCalls(NamedCalls):
    """The calls on what a table has in quarantine."""

    async def quarantines(self) -> AsyncGenerator[Quarantine, None]:
        """The operations of a table that have put rows into quarantine, newest first, as far as its history
        goes."""
        location = (await self._call("GetTable", name=self.name)).location
        replays: dict[str, str] = {}
        listed = self._listed(
            "ListOperations", "operations", table=self.name, type="ingest", page_size=PAGE_SIZE
        )
        async with aclosing(models(listed, Operation)) as operations:
            # An operation that replays rows is newer than the one that they are of: it is listed before.
            async for operation in operations:
                if again := operation.facts.get("replayOf"):
                    replays.setdefault(str(again), operation.name)
                if folder := operation.facts.get("quarantine"):
                    yield Quarantine(
                        operation=operation.name,
                        rows=int(operation.facts.get("badRows", 0)),
                        at=operation.finished_at,
                        folder=f"{location}/{folder}",
                        replayed_by=replays.get(operation.name, ""),
                    )


def replay_of(
    operation: Operation, argument: Mapping[str, Any], digest: str = ""
) -> tuple[dict[str, Any], str]:
    """The argument and the run that ingest the quarantined rows of an operation, as
    :meth:`~distop.client.handles.AsyncOperationHandle.replay` does; raises as it does."""
    folder = operation.facts.get("quarantine")
    if not isinstance(folder, str):
        raise PreconditionFailed(
            f"{operation.name} has no quarantined rows",
            hint=f"distop quarantine list {operation.table} lists the operations that have",
            details={"operation": operation.name},
        )
    given = {**argument, "replay": folder}
    asked = json.dumps([given, digest], sort_keys=True)
    return given, f"{folder.rpartition('/')[2]}-{sha256(asked.encode()).hexdigest()[:16]}"
