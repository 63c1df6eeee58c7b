"""Watermarks in what is recent and in chunks, held against a plain dictionary."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distop.errors import ArgumentTooLarge, InvalidArgument
from distop.metastore.records import watermarks
from distop.metastore.records.watermarks import (
    CHUNK_BYTES,
    MAX_ENTRY_BYTES,
    MAX_MOVED_BYTES,
    Chunks,
    Marks,
    Recent,
    check_room,
    position,
    refilled,
    upwards,
)

SOURCES = ["orders", "a.b", "s3://b/in", "s3://b/in/x", "s3://b", "s3://b/in.x", "ä%", "s3://b/in/x/y"]
PARTITIONS = ["0", "10", "x", "x/y", "x/y/z.csv", "x.csv", "y", "é", "x y", "z/" + "q" * 40, "~", "x/y.csv"]

CHANGE = st.tuples(
    st.sampled_from(SOURCES), st.sampled_from(PARTITIONS), st.one_of(st.none(), st.integers(0, 99).map(str))
)
STEPS = st.lists(st.one_of(st.lists(CHANGE, min_size=1, max_size=12), st.just("fold")), max_size=15)


class Kept:
    """A table's watermarks as etcd has them."""

    def __init__(self) -> None:
        self.recent: Recent = {}
        self.chunks: dict[bytes, bytes] = {}
        self.fetched = 0

    def fetch(self, positions: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        self.fetched += len(positions)
        firsts = (min((bound for bound in self.chunks if bound >= one), default=None) for one in positions)
        return [None if bound is None else (bound, self.chunks[bound]) for bound in firsts]

    def marks(self) -> Marks:
        return Marks(self.recent, Chunks(self.fetch))

    def change(self, changes: dict[str, dict[str, str | None]]) -> None:
        self.recent = {name: dict(marks) for name, marks in self.marks().then(changes).recent.items()}

    def fold(self) -> None:
        """All that is recent, entry by entry: what a fold takes at a time makes no difference."""
        for source, partitions in self.recent.items():
            for partition, value in partitions.items():
                where = position(source, partition)
                chunk = Chunks(self.fetch).at(where)
                entry = None if value is None else (source, partition, value)
                for bound, piece in refilled(chunk, [(where, entry)]).items():
                    if piece is None:
                        del self.chunks[bound]
                    else:
                        self.chunks[bound] = piece
        self.recent = {}


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_chunks_of_watermarks_hold_what_a_dictionary_would(
    steps: list[list[tuple[str, str, str | None]] | str],
) -> None:
    """G4: however they are split, and whenever what is recent is put into the chunks."""
    kept, plain = Kept(), dict[str, dict[str, str]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watermarks, "CHUNK_BYTES", 60)
        for step in steps:
            if isinstance(step, str):
                kept.fold()
            else:
                for source, partition, value in step:
                    kept.change({source: {partition: value}})
                    if value is not None:
                        plain.setdefault(source, {})[partition] = value
                    else:
                        plain.get(source, {}).pop(partition, None)
            plain = {source: partitions for source, partitions in plain.items() if partitions}
            _is_the_same(kept, plain)


def _is_the_same(kept: Kept, plain: dict[str, dict[str, str]]) -> None:
    assert {source: dict(partitions) for source, partitions in kept.marks().items()} == plain
    for source in SOURCES:
        assert kept.marks().get(source, {}) == plain.get(source, {})
        for partition in PARTITIONS:
            assert kept.marks().value(source, partition) == plain.get(source, {}).get(partition)
    places = {
        (source, path): f"{source}/{path}" for source in plain if "://" in source for path in plain[source]
    }
    marks = kept.marks()
    for url in ("s3://b/in/x", "s3://b/in/x/y", "s3://b/in/x/y/z.csv", "s3://b/in", "s3://b/in/x/x"):
        outer = set(upwards(url))
        marks.look_around([url])
        assert {entry[:2] for entry in marks.around(url)} == {at for at in places if places[at] in outer}
        below = {at for at in places if places[at].startswith(f"{url}/")}
        assert {entry[:2] for entry in marks.below(url)} == below


def test_chunks_are_bounded_and_read_as_they_are_needed() -> None:
    """G4: to ask for one of 20,000 is to read one chunk; those that were asked for are read together."""
    kept = Kept()
    entries = [(position("s", name), ("s", name, "1")) for name in (f"{index:05}" for index in range(20_000))]
    kept.chunks = {bound: piece or b"" for bound, piece in refilled(Chunks().at(b""), entries).items()}
    assert len(kept.chunks) == 8
    assert all(len(piece) <= CHUNK_BYTES + 100 for piece in kept.chunks.values())
    assert kept.marks().value("s", "00007") == "1"
    assert kept.fetched <= 2
    kept.fetched = 0
    marks = kept.marks()
    marks.chunks.know(position("s", f"{index:05}") for index in range(20_000))
    assert kept.fetched <= 4 * len(kept.chunks)
    read = kept.fetched
    assert all(marks.value("s", f"{index:05}") == "1" for index in range(20_000))
    assert kept.fetched == read


def test_watermarks_inserted_into_a_full_chunk_split_it_in_half() -> None:
    """G4: else the next one would split it again."""
    kept = Kept()
    entries = [
        (position("s", name), ("s", name, "1")) for name in (f"{index:05}" for index in range(0, 9_000, 2))
    ]
    kept.chunks = {bound: piece or b"" for bound, piece in refilled(Chunks().at(b""), entries).items()}
    before = len(kept.chunks)
    for index in range(1, 401, 2):
        kept.change({"s": {f"{index:05}": "2"}})
        kept.fold()
    assert len(kept.chunks) == before + 1
    assert len(kept.marks()["s"]) == 4_700


def test_too_many_watermarks_for_one_finish_are_refused_at_the_start() -> None:
    """G4"""
    name = "x" * 100
    with pytest.raises(ArgumentTooLarge, match="name fewer paths") as caught:
        check_room({"s": {f"{name}{index}": "1" for index in range(MAX_MOVED_BYTES // 100)}})
    assert caught.value.details["field"] == "watermarks"
    with pytest.raises(InvalidArgument, match="the limit is 32,768"):
        check_room({"s": {"x" * MAX_ENTRY_BYTES: "1"}})
    check_room({"s": {f"{name}{index}": "1" for index in range(5_000)}})
