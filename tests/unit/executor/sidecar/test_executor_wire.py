"""Frames between tasks and sidecars."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.errors import CorruptRecord, EtcdUnavailable, InvalidArgument
from distop.executor.sidecar import wire
from distop.metastore.operations.jobs import Mark, Outcome

MESSAGES: list[wire.FromTask] = [
    wire.Attach(1, "t/noop/1", 55, True),
    wire.MarkGroup(1, [(1, Mark("p", "a", b"{}", 9, True, True)), (2, Mark("q.ü", "b", b"\x00"))]),
    wire.ClaimRequest(3, 1, "p", "a", 4),
    wire.SaveRequest(4, 1, "p", 9, b"\xff"),
    wire.ReleaseRequest(5, 1, "p", 9),
    wire.Detach(1),
]


@given(st.lists(st.sampled_from(MESSAGES)), st.integers(1, 40))
def test_messages_survive_however_the_stream_is_cut(messages: list[wire.FromTask], size: int) -> None:
    stream = b"".join(wire.frame(message) for message in messages)
    frames = wire.Frames(wire.FromTask)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [message for piece in pieces for message in frames.feed(piece)] == messages


def test_verdicts_of_a_sidecar_carry_outcomes() -> None:
    sent = wire.Verdicts([(1, Outcome.WON, ""), (2, Outcome.UNKNOWN, "why")])
    assert list(wire.Frames(wire.FromSidecar).feed(wire.frame(sent))) == [sent]


def test_a_frame_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(CorruptRecord, match="a frame of"):
        list(wire.Frames(wire.FromTask).feed(b"\xff\xff\xff\xff"))


def test_a_frame_that_is_no_message_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="not a message"):
        list(wire.Frames(wire.FromTask).feed(b"\x00\x00\x00\x01\xc1"))


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    """S5: what a stranger sends ends its connection, and nothing else."""
    with suppress(CorruptRecord):
        list(wire.Frames(wire.FromTask).feed(data))
    with suppress(CorruptRecord):
        list(wire.Frames(wire.FromTask).feed(len(data).to_bytes(4, "big") + data))


@given(st.sampled_from(MESSAGES), st.integers(0, 500), st.integers(0, 255))
def test_damaged_messages_are_messages_or_refused(message: wire.FromTask, place: int, byte: int) -> None:
    damaged = bytearray(wire.frame(message))
    damaged[place % len(damaged)] = byte
    with suppress(CorruptRecord):
        list(wire.Frames(wire.FromTask).feed(bytes(damaged)))


def test_errors_keep_their_class_and_words() -> None:
    for error in (InvalidArgument("what", hint="how"), EtcdUnavailable("where")):
        again = wire.error_of(wire.failed([1], error))
        assert type(again) is type(error)
        assert str(again) == str(error)


def test_an_error_of_a_newer_version_may_pass() -> None:
    assert wire.error_of(wire.RequestFailed([1], "NEWER", "what", "")).retryable
