"""The watermark step: records what was ingested in the transaction that publishes it.

(The history is written by the finishing transaction itself, from the facts of all steps.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.errors import WatermarkConflict
from distop.lake.layout.staging import branch_of
from distop.metastore.etcd.txn import Put, Txn, unchanged
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.watermarks import Marks, position

_INTEGER = re.compile(r"-?[0-9]+")
_DIGITS = re.compile(r"([0-9]+)")

_OrderKey: TypeAlias = tuple[Any, ...]


def is_after(new: str, old: str) -> bool:
    """Whether ``new`` is beyond ``old``: a strict total order.

    Runs of digits compare as numbers, so that offset 10 is after 9 and ``part-10`` after ``part-9``; other
    text compares by code point, which suits ISO dates. Integers come before everything else.
    """
    return _order_key(new) > _order_key(old)


def _order_key(value: str) -> _OrderKey:
    if _INTEGER.fullmatch(value):
        return (0, Decimal(value), value)
    # Decimal, since int() refuses more than some thousand digits. split() yields text and digits in turn,
    # beginning with text: equal positions hold equal types.
    parts = [Decimal(part) if index % 2 else part for index, part in enumerate(_DIGITS.split(value))]
    return (1, parts, value)


def moved(present: Mapping[str, Mapping[str, str]], moves: dict[str, dict[str, WatermarkMove]]) -> Marks:
    """The watermarks after the moves.

    Raises :class:`~distop.errors.WatermarkConflict` if one is not at the start of its move, or would go back
    (P16); or if another operation has meanwhile ingested a folder that contains, or is within, a place.
    """
    marks = Marks.of(present)
    marks.chunks.know(position(source, path) for source, paths in moves.items() for path in paths)
    _check_surroundings(marks, moves)
    for source, partitions in moves.items():
        for partition, move in partitions.items():
            at = marks.value(source, partition)
            where = f"watermark {source!r}/{partition!r}"
            details = {"source": source, "partition": partition, "present": at or "", "after": move.after}
            if at != move.before:
                raise WatermarkConflict(
                    f"{where} is at {at!r}, but was at {move.before!r} when the operation began",
                    hint="another operation has ingested this source meanwhile: plan again",
                    details=details,
                )
            if at is not None and move.after != at and not is_after(move.after, at):
                raise WatermarkConflict(
                    f"{where} would go back from {at!r} to {move.after!r}", details=details
                )
    return marks.then(
        {source: {name: move.after for name, move in paths.items()} for source, paths in moves.items()}
    )


def _check_surroundings(marks: Marks, moves: dict[str, dict[str, WatermarkMove]]) -> None:
    """Check the watermarks around and below each place against what its move allows."""
    guarded = [
        (source, path, move)
        for source, paths in moves.items()
        if "://" in source
        for path, move in paths.items()
        if move.neighbours
    ]
    marks.look_around(f"{source}/{path}" for source, path, _ in guarded)
    for source, path, move in guarded:
        url = f"{source}/{path}"
        others = [entry for entry in marks.around(url) if entry[:2] != (source, path)]
        if move.neighbours == "older":
            others = [entry for entry in others if not is_after(move.after, entry[2])]
        other = next(iter(others), None) or (
            next(marks.below(url), None) if move.neighbours != "older" else None
        )
        if other is not None:
            at = f"{other[0]}/{other[1]}"
            raise WatermarkConflict(
                f"{at} was ingested while the operation read {url}: rows may be duplicates",
                hint="start the operation again; it reads only what is new",
                details={"source": source, "partition": path, "present": at, "after": move.after},
            )


class WatermarkStep(TransactionalStep):
    """Moves the watermarks given in the operation's argument. Without moves it contributes nothing (C8)."""

    def prepare(self, context: FinishContext) -> Contribution:
        if branch_of(context.view.arg):
            # They move when the branch is published; until then its snapshot carries them.
            return Contribution()
        moves = context.selection.moves
        if not any(moves.values()) or self._is_ignored(context):
            return Contribution()
        value = moved(context.marks, moves).encoded()
        return Contribution(
            txn=Txn((unchanged(context.watermarks),), (Put(context.keys.watermarks, value),)),
        )

    @staticmethod
    def _is_ignored(context: FinishContext) -> bool:
        from distop.lake.iceberg.metadata_files import is_ignored

        return is_ignored(context)
