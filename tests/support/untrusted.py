"""What untrusted callers send: texts, JSON, messages of gRPC and bytes that are nearly valid."""

import json
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

NAMES = (
    "",
    "t",
    "T",
    "t/noop/1",
    "t/ingest/9223372036854775808",
    "t/build_index/a/1",
    "..",
    "a.b",
    "_policy",
    "%2e%2e/",
    "%ZZ%00",
    "\x00",
    "\x1f",
    "é" * 300,
    "x" * 5_000,
    "\u202egnp",
    "😀",
    "<script>alert(1)</script>",
    "'\"&{{7*7}}",
    "distOp.t.table",
    "file:///etc/passwd",
    "s3://bucket/x",
    "noop",
    "ingest",
    "compact",
    "validate",
    "RUNNING",
    "-1",
    "1e999",
    "9" * 400,
    "AAAA",
    "eyJ0IjoxfQ==",
    "[]",
    '["t", "t"]',
)
"""Names, and texts that a caller may send as one."""

texts = st.one_of(st.sampled_from(NAMES), st.text(max_size=40))

_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    texts,
)

objects = st.dictionaries(
    st.one_of(
        st.sampled_from(
            ["paths", "partitions", "format", "csv", "rows", "query", "columns", "kind", "rules"]
        ),
        texts,
    ),
    st.recursive(
        _leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
        max_leaves=12,
    ),
    max_size=5,
)

NESTED = 100_000

json_texts = st.one_of(
    objects.map(json.dumps),
    st.sampled_from(
        [
            "",
            "{",
            "null",
            "[" * NESTED,
            '{"a":' * NESTED,
            "[" * 500 + "]" * 500,
            '{"a":1,"a":2}',
            "NaN",
            '{"partitions":' + "9" * 5_000 + "}",
            '"\\ud800"',
            '{"paths": ["/etc/passwd"]}',
            '{"partitions": -1}',
            '{"partitions": 1e400}',
        ]
    ),
    texts,
)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with a part cut out, doubled or replaced; one in three as they are."""
    data = draw(whole)
    how = draw(st.sampled_from(["none", "cut", "twice", "put", "flip"]))
    if how == "none" or not data:
        return data
    at = draw(st.integers(0, len(data) - 1))
    end = min(len(data), at + draw(st.integers(1, 16)))
    middle = {
        "cut": b"",
        "twice": data[at:end] * 2,
        "put": draw(st.binary(max_size=16)),
        "flip": bytes([data[at] ^ draw(st.integers(1, 255))]),
    }[how]
    return data[:at] + middle + data[end:]


def _values(field: Any, depth: int) -> st.SearchStrategy[Any]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return st.binary(max_size=20)
            wanted = json_texts if field.name.endswith("_json") else texts
            return wanted.filter(lambda text: not any("\ud800" <= letter <= "\udfff" for letter in text))
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_ENUM:
            return st.one_of(st.integers(-2, 10), st.integers(-(2**31), 2**31 - 1))
        case FieldDescriptor.CPPTYPE_INT64:
            return st.one_of(st.integers(-2, 10), st.integers(-(2**63), 2**63 - 1))
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return messages(field.message_type, depth + 1)
        case _:
            return st.just(0)


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor, depth: int = 0) -> Message:
    """A message of a kind, with some of its fields."""
    made: Any = GetMessageClass(kind)()
    for field in kind.fields:
        inner = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        if (inner and depth > 3) or draw(st.integers(0, 2)) == 0:
            continue
        values = _values(field, depth)
        if field.is_repeated:
            given = draw(st.lists(values, max_size=3))
            getattr(made, field.name).extend(given)
        elif inner:
            getattr(made, field.name).CopyFrom(draw(values))
        else:
            setattr(made, field.name, draw(values))
    return made  # type: ignore[no-any-return]
