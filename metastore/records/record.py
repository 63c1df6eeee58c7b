"""Records in etcd, and other values, as JSON: encoding and decoding.

Values are JSON that an operator can read. Every record carries the version of its layout: a newer layout
that this version does not support is refused by name (``CorruptRecord``), unknown optional fields of the same
layout are ignored.

Any thread may convert. msgspec prepares a type when it is used for the first time. A second thread that uses
it meanwhile finds it half prepared, and the process crashes (msgspec 0.22: a segmentation fault). So each
type is prepared before its first use, one at a time: by :func:`convert` and :func:`from_json`, which replace
msgspec's own.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar, TypeVar

import msgspec

from distop.errors import CorruptRecord, InvalidArgument

_ready: set[Any] = set()
_one_at_a_time = threading.Lock()

# Every record type is fixed, so one encoder serves all; sorted keys make equal records equal bytes.
_encoder = msgspec.json.Encoder(order="deterministic")

T = TypeVar("T")


def ready(kind: type[T]) -> type[T]:
    """Prepare a type for decoders in any thread; returns the type."""
    if kind not in _ready:
        with _one_at_a_time:
            msgspec.msgpack.Decoder(kind)
            _ready.add(kind)
    return kind


def convert(value: object, kind: type[T]) -> T:
    """Plain values, lists and dictionaries as a ``kind``; ``msgspec.ValidationError`` if they do not fit."""
    return msgspec.convert(value, ready(kind))


def from_json(data: bytes | str, kind: type[T]) -> T:
    """A ``kind`` from JSON; raises ``msgspec.ValidationError`` or ``msgspec.DecodeError``."""
    return msgspec.json.decode(data, type=ready(kind))


class Record(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The root of all records. ``version`` is that of the layout."""

    LAYOUT: ClassVar[int] = 1
    # A factory, since omit_defaults would leave a plain default out of the JSON.
    version: int = msgspec.field(default_factory=lambda: 1)


class _Layout(msgspec.Struct):
    version: int = 0


R = TypeVar("R", bound=Record)
_decoders: dict[type[Record], msgspec.json.Decoder[Any]] = {}


def encode(record: Record, *, checked: bool = True) -> bytes:
    """The JSON bytes of a record; equal records give equal bytes.

    Parameters
    ----------
    checked:
        Whether to decode the result once as :func:`decode` will, a microsecond: unnecessary for records that
        are written very often and contain nothing from a caller or an operation type.

    Raises
    ------
    InvalidArgument
        It could be written and never be read: a field holds a value of a wrong type.
    """
    try:
        value = _encoder.encode(record)
        if checked:
            _decoder(type(record)).decode(value)
    except (msgspec.MsgspecError, UnicodeEncodeError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"no {type(record).__name__} can be made of this: {error}") from error
    return value


def _decoder(kind: type[R]) -> msgspec.json.Decoder[R]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders.setdefault(kind, msgspec.json.Decoder(ready(kind)))
    return decoder


def decode(value: bytes, kind: type[R], key: bytes = b"") -> R:
    """The record in a value of etcd.

    Raises
    ------
    CorruptRecord
        The value is not a record of this kind, or of a newer layout than this version understands.
    """
    try:
        record = _decoder(kind).decode(value)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, InvalidArgument) as error:
        # Fields of a newer layout may have other types: then report the layout.
        _refuse_newer(_layout_of(value), kind, key)
        raise CorruptRecord(f"{key.decode(errors='replace')} holds no {kind.__name__}: {error}") from error
    _refuse_newer(record.version, kind, key)
    return record


def readable(value: bytes, kind: type[R], key: bytes = b"") -> R | None:
    """The record in a value of etcd; ``None`` if this version cannot read it, or there is no value."""
    try:
        return decode(value, kind, key)
    except CorruptRecord:
        return None


def _layout_of(value: bytes) -> int:
    try:
        return from_json(value, _Layout).version
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0


def _refuse_newer(layout: int, kind: type[Record], key: bytes) -> None:
    if layout > kind.LAYOUT:
        raise CorruptRecord(
            f"{key.decode(errors='replace')} has layout {layout} of {kind.__name__}, "
            f"this version understands up to {kind.LAYOUT}",
            hint="upgrade distop on this host",
        )


def encode_plain(value: object) -> bytes:
    """The JSON bytes of a value without an envelope; equal values give equal bytes."""
    return _encoder.encode(value)


def decode_plain(value: bytes, kind: type[T], description: str) -> T:
    """The inverse. For a missing key's empty value: an empty ``kind``."""
    try:
        return from_json(value or b"{}", kind)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"{description} cannot be read: {error}") from error
