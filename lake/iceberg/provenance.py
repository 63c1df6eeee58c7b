"""The provenance of a snapshot in its summary (its operation), and how a rollback reads it (P11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from distop.commit.partial import Moves
from distop.errors import PreconditionFailed
from distop.metastore.backlog.undoing import Done, RollbackDifference
from distop.metastore.operations.starting import REMEMBER_S
from distop.metastore.records.operation import OperationArg, RequestNote, WatermarkMove
from distop.metastore.records.record import from_json
from distop.metastore.records.watermarks import Changes, Marks, position

MAX_SUMMARY_WATERMARKS_BYTES = 16 << 10
"""Most watermarks in a snapshot's summary: every metadata file repeats the summaries of all snapshots."""

WATERMARKS = "distop.watermarks"
"""How far the operation brought the sources: ``{"source": {"partition": "value"}}``; or, if there are too
many, ``{"source": "2000 partitions"}``."""
WATERMARKS_BEFORE = "distop.watermarks-before"
"""The earlier values of those that had one."""
OPERATION, UUID, STARTED_BY = "distop.operation", "distop.uuid", "distop.started-by"
BATCHES = "distop.batches"
"""The batches that the operation applied, as a list; they are few, see ``MAX_TOGETHER``."""
UNORDERED = "distop.batch"
"""The applied batch without an order."""
REQUEST = "distop.request"
"""The request that started it, if its caller has named the run: ``{"id": ..., "digest": ..., ...}``."""
INSTEAD_OF = "distop.instead-of"
"""The earlier operation in place of whose files it has added its own."""
DEPENDENT = "distop.dependent"
"""``true`` if it only added files because of what the table held: a merge that found none of its keys, or an
overwrite of partitions without rows. On other content its operation might have done more."""
FOREIGN_RUN = "distop.run"
"""The run that another program names for its commit."""
EARLIER_FOREIGN_RUN = "distop.request-id"
"""The same, as release 0.2.0 called it: programs, and the histories of tables, have it still."""

PRODUCT_PROPERTIES = (
    WATERMARKS,
    WATERMARKS_BEFORE,
    OPERATION,
    UUID,
    STARTED_BY,
    BATCHES,
    UNORDERED,
    REQUEST,
    INSTEAD_OF,
    DEPENDENT,
)
"""All of these properties: readers trust them, so no other program may write them."""

_KEEP = "roll back with --watermarks keep; what is ingested again then needs --reingest"


class Request(RequestNote, kw_only=True):
    """What a snapshot says of the request that started its operation."""

    id: str


def provenance(arg: OperationArg, moved: Moves) -> dict[str, str]:
    """Who made a snapshot and what it holds: shows after a loss of etcd what was done already."""
    properties = {
        OPERATION: str(arg.id),
        UUID: arg.uuid,
        STARTED_BY: arg.started_by,
        UNORDERED: arg.unordered,
    }
    if arg.batches:
        properties[BATCHES] = _text(arg.batches)
    note = arg.request_note
    if arg.run and note.call != arg.run:  # other ids were made for a single call
        request = Request(id=arg.run, digest=note.digest, call=note.call, forget_at=note.forget_at)
        properties[REQUEST] = _text(request)
    return {name: value for name, value in properties.items() if value} | watermark_properties(moved)


def watermark_properties(moved: Moves) -> dict[str, str]:
    """What a snapshot says of the watermarks that moved with it."""
    properties: dict[str, str] = {}
    if any(moved.values()):
        after = {
            source: {name: move.after for name, move in moves.items()} for source, moves in moved.items()
        }
        before = {
            source: {name: move.before for name, move in moves.items() if move.before is not None}
            for source, moves in moved.items()
        }
        properties[WATERMARKS], properties[WATERMARKS_BEFORE] = _text(after), _text(before)
        if len(properties[WATERMARKS]) + len(properties[WATERMARKS_BEFORE]) > MAX_SUMMARY_WATERMARKS_BYTES:
            properties[WATERMARKS] = _text(
                {source: f"{len(moves)} partitions" for source, moves in moved.items()}
            )
            del properties[WATERMARKS_BEFORE]
    return properties


def moves_of(snapshot: Snapshot) -> Moves:
    """The watermarks in a snapshot's summary, as :func:`provenance` wrote them.

    Raises
    ------
    PreconditionFailed
        There were too many to store, or the summary is invalid.
    """
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    if WATERMARKS not in properties:
        return {}
    if WATERMARKS_BEFORE not in properties:
        raise PreconditionFailed(
            f"snapshot {snapshot.snapshot_id} does not say which watermarks it moves",
            hint=_KEEP,
            details={"field": "watermarks", "snapshot": str(snapshot.snapshot_id)},
        )
    before = _decoded(snapshot, WATERMARKS_BEFORE)
    return {
        source: {
            name: WatermarkMove(before=before.get(source, {}).get(name), after=after)
            for name, after in partitions.items()
        }
        for source, partitions in _decoded(snapshot, WATERMARKS).items()
    }


@dataclass(frozen=True)
class _Move:
    """Of the main branch, to a snapshot that exists. Snapshots are listed newest first."""

    gone: list[Snapshot]
    """No longer part of the table's history."""
    back: list[Snapshot]
    """Part of it again, as before an earlier rollback."""
    new: list[Snapshot]
    """Part of it that never were: those of a branch."""
    left: list[Snapshot]
    """The whole history now."""

    @classmethod
    def of(cls, before: TableMetadata, target: Snapshot) -> _Move:
        present = list(ancestors_of(before.current_snapshot(), before))
        left = list(ancestors_of(target, before))
        numbers, remaining = (
            {snapshot.snapshot_id for snapshot in present},
            {snapshot.snapshot_id for snapshot in left},
        )
        coming = [snapshot for snapshot in left if snapshot.snapshot_id not in numbers]
        was_there = {entry.snapshot_id for entry in before.snapshot_log}
        # What a snapshot of the history follows was part of it, too.
        first = next(
            (at for at, snapshot in enumerate(coming) if snapshot.snapshot_id in was_there), len(coming)
        )
        gone = [snapshot for snapshot in present if snapshot.snapshot_id not in remaining]
        return cls(gone, coming[first:], coming[:first], left)


def difference_of_rollback(before: TableMetadata, target: Snapshot) -> RollbackDifference:
    """What the move of the main branch to a snapshot that exists takes out of the table's history, and what
    it brings back after an earlier one."""
    move = _Move.of(before, target)
    return RollbackDifference(gone=done_by(move.gone), back=done_by(move.back), left=done_by(move.left))


def rolled_back(metadata: TableMetadata) -> tuple[list[Snapshot], list[Snapshot]]:
    """The history of a table, and the snapshots that were part of it before a rollback, as far as they have
    not expired. Both newest first."""
    live = list(ancestors_of(metadata.current_snapshot(), metadata))
    known, gone = {snapshot.snapshot_id for snapshot in live}, list[Snapshot]()
    for entry in metadata.snapshot_log:
        if entry.snapshot_id in known:
            continue
        for snapshot in ancestors_of(metadata.snapshot_by_id(entry.snapshot_id), metadata):
            if snapshot.snapshot_id in known:
                break
            known.add(snapshot.snapshot_id)
            gone.append(snapshot)
    return live, sorted(
        gone, key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms), reverse=True
    )


def foreign_run(snapshot: Snapshot) -> str:
    """The run that another program names for its commit; empty if it names none."""
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    return properties.get(FOREIGN_RUN) or properties.get(EARLIER_FOREIGN_RUN, "")


def done_by(snapshots: Iterable[Snapshot]) -> Done:
    """The batches and requests that some snapshots, the newest first, have applied; each with the last
    operation that did."""
    done = Done()
    for snapshot in reversed(list(snapshots)):
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        operation = properties.get(OPERATION, "")
        if BATCHES in properties:
            done.batches.update(dict.fromkeys(from_json(properties[BATCHES].encode(), list[str]), operation))
        if UNORDERED in properties:
            done.unordered[properties[UNORDERED]] = operation
        if REQUEST in properties:
            request = from_json(properties[REQUEST].encode(), Request)
            done.requests[request.id] = operation, request.forget_at
        elif run := foreign_run(snapshot):
            done.requests[run] = "", snapshot.timestamp_ms / 1000 + REMEMBER_S
    return done


def _text(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def as_of(target: Snapshot, before: TableMetadata, watermarks: Mapping[str, Mapping[str, str]]) -> Marks:
    """The watermarks as they belong to a snapshot that is, or was before a rollback, part of the table's
    history.

    Raises
    ------
    PreconditionFailed
        It never was; or a snapshot in between moved watermarks and does not record which: there were too
        many of them, an earlier version of distop made it, or another program wrote an invalid summary.
    """
    move = _Move.of(before, target)
    if move.new:
        raise PreconditionFailed(
            f"snapshot {target.snapshot_id} was never in the table's history: its watermarks are unknown",
            hint="roll back with --watermarks keep, and correct the watermarks: distop watermark set",
            details={"field": "watermarks"},
        )
    changes: dict[str, dict[str, str | None]] = {}
    for snapshot in move.gone:
        for source, moves in moves_of(snapshot).items():
            changes.setdefault(source, {}).update({name: move.before for name, move in moves.items()})
    for snapshot in reversed(move.back):
        for source, moves in moves_of(snapshot).items():
            changes.setdefault(source, {}).update({name: move.after for name, move in moves.items()})
    return _changed(Marks.of(watermarks), changes)


def rewound(
    live: Iterable[Snapshot],
    gone: Iterable[Snapshot],
    watermarks: Mapping[str, Mapping[str, str]],
    only: str = "",
) -> Marks:
    """The watermarks without the moves of snapshots that are no longer part of a table.

    A watermark that a snapshot of the table explains, or that something else has moved since, stays.

    Parameters
    ----------
    live:
        The present snapshot and those that it follows.
    gone:
        The others, the newest first.
    only:
        Only this source. Empty: all.

    Raises
    ------
    PreconditionFailed
        One of those does not record the earlier values of the watermarks that it moved.
    """
    marks = Marks.of(watermarks)
    back: dict[str, dict[str, str | None]] = {}
    kept = {
        (source, name, move.after)
        for snapshot in live
        if WATERMARKS_BEFORE in (snapshot.summary.additional_properties if snapshot.summary else {})
        for source, moves in moves_of(snapshot).items()
        for name, move in moves.items()
    }
    for snapshot in gone:
        for source, moves in moves_of(snapshot).items():
            marks.chunks.know(position(source, name) for name in moves)
            earlier = back.setdefault(source, {})
            for name, move in moves.items():
                now = earlier[name] if name in earlier else marks.value(source, name)
                if now == move.after and (source, name, move.after) not in kept and only in ("", source):
                    earlier[name] = move.before
    return _changed(marks, back)


def _changed(marks: Marks, changes: Changes) -> Marks:
    marks.chunks.know(position(source, name) for source, names in changes.items() for name in names)
    return marks.then(changes)


def _decoded(snapshot: Snapshot, name: str) -> Mapping[str, Mapping[str, str]]:
    """What a snapshot's summary has under a name that is there."""
    text = str(snapshot.summary[name]) if snapshot.summary else ""
    try:
        return from_json(text.encode(), dict[str, dict[str, str]])
    except msgspec.MsgspecError as error:
        raise PreconditionFailed(
            f"the watermarks in snapshot {snapshot.snapshot_id} cannot be read: {error}",
            hint=_KEEP,
            details={"snapshot": str(snapshot.snapshot_id)},
        ) from error
