"""The watermark step: what was ingested is recorded in the transaction that makes it visible.

(The history is written by the finishing transaction itself, from the facts of all steps.)
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, TypeAlias

from distop.commit.layout.staging import branch_of
from distop.commit.steps.contract import Contribution, FinishContext, TransactionalStep
from distop.commit.steps.partial import selection
from distop.errors import Exhausted, WatermarkConflict
from distop.metastore.etcd.txn import Put, Txn, unchanged
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.record import encode_plain
from distop.metastore.records.table import Watermarks, decode_watermarks

MAX_WATERMARKS_BYTES = 1_000_000
"""All watermarks of a table stand in one key, which etcd limits."""

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
        return (0, int(value), value)
    # split() yields text and digits in turn, beginning with text: equal positions hold equal types.
    parts = [int(part) if index % 2 else part for index, part in enumerate(_DIGITS.split(value))]
    return (1, parts, value)


def moved(present: Watermarks, moves: dict[str, dict[str, WatermarkMove]]) -> Watermarks:
    """The watermarks after the moves.

    Raises :class:`~distop.errors.WatermarkConflict` if one does not stand where its move begins, or would
    go back (P16); or if another operation has ingested a folder around or below a place meanwhile.
    """
    _check_beside(present, moves)
    result = {source: dict(partitions) for source, partitions in present.items()}
    for source, partitions in moves.items():
        standing = result.setdefault(source, {})
        for partition, move in partitions.items():
            at = standing.get(partition)
            where = f"watermark {source!r}/{partition!r}"
            details = {"source": source, "partition": partition, "present": at or "", "after": move.after}
            if at != move.before:
                raise WatermarkConflict(
                    f"{where} stands at {at!r}, the operation began at {move.before!r}",
                    hint="another operation has ingested this source meanwhile: plan again",
                    details=details,
                )
            if at is not None and move.after != at and not is_after(move.after, at):
                raise WatermarkConflict(
                    f"{where} would go back from {at!r} to {move.after!r}", details=details
                )
            standing[partition] = move.after
    return result


def standing_by_url(standing: Watermarks) -> dict[str, tuple[str, str]]:
    """Where something was ingested from -> its source and partition; of sources that are places."""
    return {
        f"{source}/{path}": (source, path)
        for source, partitions in standing.items()
        if "://" in source
        for path in partitions
    }


def upwards(url: str) -> Iterator[str]:
    """A URL, and those of the folders around it."""
    while url:
        yield url
        url = url.rpartition("/")[0]


def _check_beside(present: Watermarks, moves: dict[str, dict[str, WatermarkMove]]) -> None:
    """What stands around and below each place must be what its move allows beside it."""
    guarded = [
        (source, path, move)
        for source, paths in moves.items()
        if "://" in source
        for path, move in paths.items()
        if move.beside
    ]
    if not guarded:
        return
    standing = standing_by_url(present)
    urls = sorted(standing)
    for source, path, move in guarded:
        url = f"{source}/{path}"
        others = [outer for outer in upwards(url) if standing.get(outer, (source, path)) != (source, path)]
        if move.beside == "older":
            marks = ((outer, present[at][name]) for outer in others for at, name in [standing[outer]])
            others = [outer for outer, mark in marks if not is_after(move.after, mark)]
        else:
            below = bisect_left(urls, f"{url}/")
            others += [other for other in urls[below : below + 1] if other.startswith(f"{url}/")]
        if others:
            raise WatermarkConflict(
                f"{others[0]} was ingested while the operation read {url}: rows may be the same",
                hint="start it again, for what is new",
                details={"source": source, "partition": path, "present": others[0], "after": move.after},
            )


def check_size(table: str, watermarks: Watermarks) -> bytes:
    """Watermarks as they are stored. Raises :class:`~distop.errors.Exhausted` if they are too many."""
    value = encode_plain(watermarks)
    if len(value) > MAX_WATERMARKS_BYTES:
        raise Exhausted(
            f"the watermarks of table {table!r} would take {len(value):,} bytes, "
            f"the limit is {MAX_WATERMARKS_BYTES:,}",
            hint="give sources fewer partitions",
        )
    return value


class WatermarkStep(TransactionalStep):
    """Moves the watermarks as the operation's argument says. No moves: contributes nothing (C8)."""

    def prepare(self, context: FinishContext) -> Contribution:
        if branch_of(context.view.arg):
            # They move when the branch is published; until then its snapshot carries them.
            return Contribution()
        moves = selection(context.view.arg, context.view.jobs).moves
        if not any(moves.values()) or self._is_ignored(context):
            return Contribution()
        after = moved(decode_watermarks(context.watermarks.value), moves)
        value = check_size(context.table.name, after)
        return Contribution(
            txn=Txn((unchanged(context.watermarks),), (Put(context.keys.watermarks, value),)),
        )

    @staticmethod
    def _is_ignored(context: FinishContext) -> bool:
        from distop.commit.iceberg.content import is_ignored

        return is_ignored(context)
