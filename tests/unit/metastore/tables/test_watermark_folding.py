"""Folds of watermarks, without etcd: each makes progress and fits a transaction, whatever names there are."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from distop.metastore.etcd.txn import DeleteRange, Put
from distop.metastore.records.names import escape
from distop.metastore.records.record import encode_plain
from distop.metastore.records.watermarks import (
    CHUNK_BYTES,
    FOLD_BYTES,
    MAX_ENTRY_BYTES,
    MAX_RECENT_BYTES,
    Chunks,
    Marks,
    Recent,
    check_entry,
    chunk_value,
    position,
)
from distop.metastore.tables.watermarks import folded

REQUEST_BYTES, REQUEST_OPS = 1_500_000, 120
"""Limits of etcd, with room for compares."""

LETTERS = st.sampled_from(["s", "é", "\x01", '"', ".", "/", "𝄞"])
NAMES = st.sampled_from([1, 40, 300, 600, 900, 5_000, MAX_ENTRY_BYTES])
VALUES = st.sampled_from([None, 1, 1, 1, 30, 1_000, MAX_ENTRY_BYTES])
BATCHES = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 700), VALUES), min_size=2, max_size=8)
"""How many partitions of how many sources, and the length of values."""


class Kept:
    """The chunks of a table, as etcd has them; also what reads them."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, bytes] = {}

    def __call__(self, positions: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        firsts = (min((bound for bound in self.chunks if bound >= one), default=None) for one in positions)
        return [None if bound is None else (bound, self.chunks[bound]) for bound in firsts]

    async def read(self, client: object, positions: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        return self(positions)

    def fold(self, recent: Recent) -> None:
        """One fold, which makes progress and fits a transaction."""
        before = sum(map(len, recent.values()))
        ops = asyncio.run(folded(cast("Any", None), recent, cast("Any", self), b""))
        assert sum(map(len, recent.values())) < before
        assert len(ops) <= REQUEST_OPS
        written = sum(len(op.key) + (len(op.value) if isinstance(op, Put) else 0) for op in ops)
        assert written + len(encode_plain(recent)) <= REQUEST_BYTES
        for op in ops:
            if isinstance(op, DeleteRange):
                del self.chunks[op.key]
            else:
                self.chunks[op.key] = op.value

    def all_of(self, recent: Recent) -> dict[str, dict[str, str]]:
        return {source: dict(values) for source, values in Marks(recent, Chunks(self)).items()}


def batch(letter: str, length: int, partitions: int, sources: int, values: int | None) -> Recent:
    """As many of them as one change may hold, of names as long as is accepted."""
    made: Recent = {}
    room, most = MAX_RECENT_BYTES // 3, MAX_ENTRY_BYTES - 20
    name = letter * min(length, most // len(escape(letter)))
    value = None if values is None else "v" * min(values, most - len(escape(name)))
    for source in (f"{name}{number * 7919 % 1000}" for number in range(sources, 2 * sources)):
        for partition in (f"{number * 7919 % 1000}" for number in range(partitions)):
            check_entry(source, partition, value or "")
            room -= len(encode_plain({source: {partition: value}}))
            if room < 0:
                return made
            made.setdefault(source, {})[partition] = value
    return made


@settings(max_examples=40, deadline=None)
@given(LETTERS, NAMES, BATCHES)
@example("s", 600, [(1, 300, 1), (1, 600, 1), (1, 150, 1), (1, 700, 1)])
def test_every_fold_makes_progress_and_keeps_every_value(
    letter: str, length: int, drawn: list[tuple[int, int, int | None]]
) -> None:
    """G4: whatever the sources are called."""
    kept, recent, plain = Kept(), Recent(), dict[str, dict[str, str]]()
    for one in drawn:
        changes = batch(letter, length, *one)
        for source, values in changes.items():
            for partition, value in values.items():
                if value is None:
                    plain.get(source, {}).pop(partition, None)
                else:
                    plain.setdefault(source, {})[partition] = value
        then = Marks(recent, Chunks(kept)).then(changes).recent
        recent = {source: dict(values) for source, values in then.items()}
        while len(encode_plain(recent)) > FOLD_BYTES:
            kept.fold(recent)
    while recent:
        kept.fold(recent)
    assert kept.all_of(recent) == {source: values for source, values in plain.items() if values}


def test_a_chunk_that_an_earlier_version_has_let_grow_is_split() -> None:
    """G4: it took 400 KB, since the names of its sources were not counted, and nothing more went into it."""
    kept = Kept()
    sources = [f"{number:04}{'s' * 500}" for number in range(0, 1600, 2)]
    old = [(source, "0", "1") for source in sources]
    kept.chunks[position(old[-1][0], "0")] = chunk_value(old)
    assert len(chunk_value(old)) > 400_000
    recent: Recent = {f"{number:04}{'s' * 500}": {"0": "2"} for number in range(1, 1600, 2)}
    expected = {source: {"0": "1"} for source in sources} | {source: {"0": "2"} for source in recent}
    while recent:
        kept.fold(recent)
    assert kept.all_of(recent) == expected
    assert all(len(value) <= CHUNK_BYTES + 600 for value in kept.chunks.values())
