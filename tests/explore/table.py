"""The table of the model: operation types without data, whose results show in the head what was published.

The head's ``metadata_location`` is a line of entries, one for each commit, oldest first: ``append/1[0:a@5]``
is an operation with the attempts whose results it has published, ``foreign/0`` a commit of another program.
So whoever compares two heads sees which commits were lost or made twice.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from unittest import mock

from distop.commit.contract import VARIABLE, Contribution, FinishContext, TransactionalStep, default_registry
from distop.errors import Exhausted, HeadConflict
from distop.metastore.records.keyspace import Keyspace, OperationKeys, TableKeys
from distop.metastore.records.operation import (
    COMMITTING,
    CompletionRecord,
    Effect,
    JobRecord,
    OperationArg,
    Retry,
    StepRecord,
    WatermarkMove,
)
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord
from distop.operations.api import DistributedOperation, OperationView, Plan, PlanRequest
from distop.operations.registry import Registry
from explore.store import Store

TABLE = "t"
KEYS = Keyspace().table(TABLE)
SOURCE, PARTITION = "source", "p"
CHUNKS = KEYS.keyspace.watermark_chunks("u")
"""What the keys of folded watermarks begin with."""


REMOVED = b"~removed."
"""Keys outside of distop's: the files of an attempt are gone."""


def operations(store: Store, keys: TableKeys = KEYS) -> list[OperationKeys]:
    """Those of the table that still have keys, in key order."""
    active = keys.keyspace.active + f"{keys.name}.".encode()
    return [keys.operation(keys.keyspace.parse_active(kv.key)) for kv in store.under(active)]


def is_parked(store: Store, keys: OperationKeys) -> bool:
    """Whether an operation waits for a decision."""
    kv = store.get(keys.completion)
    parked = kv.exists and decode(kv.value, CompletionRecord, kv.key).parked
    return parked and store.get(keys.state).value == COMMITTING and not store.get(keys.resolve).exists


def table() -> Store:
    """A store with the table and nothing else, whose changes are numbered causally."""
    record = TableRecord(name=TABLE, location="file:///nowhere", uuid="u")
    return Store(causal=True).apply_put(KEYS.table, encode(record))


def line(head: bytes) -> str:
    """What a head (empty: none) says was committed."""
    return decode(head, Head, KEYS.head).metadata_location if head else ""


def entry_of(operation: str, jobs: dict[str, JobRecord]) -> str:
    """What an operation adds to the line."""
    done = ",".join(f"{name}:{job.attempt}" for name, job in sorted(jobs.items()) if job.state == "success")
    return f"{operation.partition('/')[2]}[{done}]"


class ExploreHead(TransactionalStep):
    """Moves the head; with ``on``: only if it stands as it did when the operation was planned."""

    def prepare(self, context: FinishContext) -> Contribution:
        present = line(context.head.value)
        if "on" in self.argument and self.argument["on"] != present:
            raise HeadConflict(f"planned on {self.argument['on']!r}, found {present!r}")
        entry = entry_of(str(context.view.arg.id), dict(context.view.jobs))
        head = Head(metadata_location=f"{present} {entry}".strip(), operation=str(context.view.arg.id))
        return Contribution(txn=context.head_moved(head))


class Append(DistributedOperation):
    """Rows of a source; with ``watermark`` in its argument they are those after the watermark that stands."""

    type = "append"
    retry = Retry(for_s=0.05)  # parked after the second failure
    effect = Effect.APPENDS
    must_stand: ClassVar[bool] = False

    def plan(self, request: PlanRequest) -> Plan:
        on = request.head.metadata_location if request.head is not None else ""
        marks = {}
        if request.argument.get("watermark"):
            before = request.watermarks.get(SOURCE, {}).get(PARTITION)
            marks = {SOURCE: {PARTITION: WatermarkMove(before=before, after=str(int(before or "0") + 1))}}
        return Plan(
            argument={"on": on},
            partition_count=request.argument.get("jobs", 0),
            watermarks=marks,
            uuid=request.argument["uuid"],
        )

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        on = {"on": operation.argument["on"]} if self.must_stand else {}
        return [StepRecord(step="explore_head", argument=on)]

    def run_job(self, job: Any) -> None:
        raise NotImplementedError("attempts of the model do nothing but mark")


class Overwrite(Append):
    """Replaces what it has read: refused if that has changed. One at a time."""

    type = "overwrite"
    effect = Effect.WRITES
    must_stand = True


class Owned(Append):
    """An append whose jobs are claimed."""

    type = "owned"
    exclusive = True


class Silent(Append):
    """A type whose operations publish nothing."""

    type = "silent"

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        return ()


class Failing(Silent):
    """Its end fails, whenever it is tried."""

    type = "failing"

    def before_publish(self, operation: OperationView) -> None:
        raise Exhausted("no room")


def registry() -> Registry:
    """The types of the model."""
    return Registry(
        [f"{kind.__module__}:{kind.__name__}" for kind in (Append, Overwrite, Owned, Silent, Failing)]
    )


@contextlib.contextmanager
def steps_known() -> Iterator[None]:
    """Let the commit steps of the model be found."""
    with mock.patch.dict(os.environ, {VARIABLE: f"explore_head={__name__}:ExploreHead"}):
        default_registry.cache_clear()
        try:
            yield
        finally:
            default_registry.cache_clear()
