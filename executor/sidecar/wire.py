"""The protocol between a task and its sidecar: length-prefixed msgpack frames on a Unix socket.

One frame is one message; a message about marks carries all that are ready, since a frame (not a mark) costs a
system call and a wake-up. Every request has a number; its answer has the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from distop.errors import CorruptRecord, DistopError, EtcdUnavailable, error_class
from distop.executor.host.sidecar_folder import PROTOCOL
from distop.metastore.operations.jobs import Mark, Outcome
from distop.metastore.records.record import ready

MAX_FRAME_BYTES = 8 << 20
_HEADER = 4


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# -- from the task -----------------------------------------------------------------------------------


class Attach(_Message, frozen=True):
    """Names a run: from now on ``run`` means it on this connection, and its end is reported."""

    run: int
    operation: str
    token: int
    claims: bool
    """Whether its jobs are claimed."""


class Detach(_Message, frozen=True):
    """The task works no longer for ``run``: the number may name another run from now on."""

    run: int


class MarkGroup(_Message, frozen=True):
    run: int
    marks: list[tuple[int, Mark]]


class ClaimRequest(_Message, frozen=True):
    number: int
    run: int
    partition: str
    attempt: str
    held: int = 0
    """The claim that the attempt already holds, from before the connection broke."""


class ReleaseRequest(_Message, frozen=True):
    number: int
    run: int
    partition: str
    claim: int


class SaveRequest(_Message, frozen=True):
    number: int
    run: int
    partition: str
    claim: int
    value: bytes


class AttemptFailed(_Message, frozen=True):
    """An attempt has failed, and another one follows."""

    number: int
    run: int
    partition: str
    attempt: str
    error: str


# -- from the sidecar --------------------------------------------------------------------------------


class Verdicts(_Message, frozen=True):
    """Answers to marks: number, outcome, reason."""

    answers: list[tuple[int, Outcome, str]]


class ClaimAnswer(_Message, frozen=True):
    number: int
    claim: int
    checkpoint: bytes | None
    until: float
    """Until when the claim is certainly held, by ``boot_clock``; a later :class:`Renewed` extends it."""


class ClaimOccupied(_Message, frozen=True):
    """Another attempt has owned the job all the time; ask again."""

    number: int
    holder: str


class Refused(_Message, frozen=True):
    """The attempt does not own the job: LOST or GONE."""

    number: int
    outcome: Outcome
    reason: str


class RequestDone(_Message, frozen=True):
    number: int


class RequestFailed(_Message, frozen=True):
    """Requests or marks that could not be answered."""

    numbers: list[int]
    code: str
    message: str
    hint: str


class Over(_Message, frozen=True):
    """Pushed: the run is no longer held; work for it is not needed."""

    run: int
    reason: str


class ClaimLost(_Message, frozen=True):
    """Pushed: the claim is gone."""

    run: int
    partition: str
    claim: int
    reason: str


class Renewed(_Message, frozen=True):
    """Pushed: the lease of all claims holds at least until this reading of ``boot_clock``,
    even if the sidecar ends."""

    until: float


Request: TypeAlias = ClaimRequest | ReleaseRequest | SaveRequest | AttemptFailed
FromTask: TypeAlias = Attach | Detach | MarkGroup | Request
Answer: TypeAlias = ClaimAnswer | ClaimOccupied | Refused | RequestDone | RequestFailed
FromSidecar: TypeAlias = Verdicts | Answer | Over | ClaimLost | Renewed

_encoder = msgspec.msgpack.Encoder()


def frame(message: FromTask | FromSidecar) -> bytes:
    """The bytes of one message, with its length in front."""
    buffer = bytearray(_HEADER)
    _encoder.encode_into(message, buffer, _HEADER)
    buffer[:_HEADER] = (len(buffer) - _HEADER).to_bytes(_HEADER, "big")
    return bytes(buffer)


class Frames:
    """Splits a stream of bytes into messages.

    Parameters
    ----------
    kind:
        :data:`FromTask` or :data:`FromSidecar`: the allowed messages.
    """

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(ready(kind))
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that ``data`` completes.

        Raises
        ------
        CorruptRecord
            The other side does not use this protocol; the connection is unusable.
        """
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEADER:
            length = int.from_bytes(buffer[start : start + _HEADER], "big")
            if length > MAX_FRAME_BYTES:
                raise CorruptRecord(f"a frame of {length:,} bytes; at most {MAX_FRAME_BYTES:,} are allowed")
            end = start + _HEADER + length
            if len(buffer) < end:
                break
            try:
                message = self._decoder.decode(bytes(buffer[start + _HEADER : end]))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise CorruptRecord(f"not a message of protocol {PROTOCOL}: {error}") from error
            start = end
            yield message
        del buffer[:start]


def failed(numbers: list[int], error: DistopError) -> RequestFailed:
    """An error as a message."""
    return RequestFailed(numbers, error.code, error.message, error.hint)


def error_of(message: RequestFailed) -> DistopError:
    """The error in a message; an unknown code counts as "etcd does not answer"."""
    kind = error_class(message.code) or EtcdUnavailable
    return kind(message.message, hint=message.hint)
