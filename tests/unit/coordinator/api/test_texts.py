"""Every text and every list of every request has a bound."""

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from distop.coordinator.api.calls import check_texts
from distop.errors import InvalidArgument
from distop.proto import distop_pb2 as pb

REQUESTS = sorted(
    {method.input_type for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods},
    key=lambda one: one.full_name,
)


def fields(kind: Descriptor, depth: int = 2) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The ways to every field of a request."""
    for field in kind.fields:
        yield (field,)
        if field.message_type is not None and depth:
            yield from ((field, *way) for way in fields(field.message_type, depth - 1))


WAYS = [
    (kind, way)
    for kind in REQUESTS
    for way in fields(kind)
    if way[-1].type == FieldDescriptor.TYPE_STRING or way[-1].is_repeated
]


def filled(kind: Descriptor, way: tuple[FieldDescriptor, ...]) -> Message:
    """A request with very much in one field."""
    request = GetMessageClass(kind)()
    message = request
    for field in way[:-1]:
        inner = getattr(message, field.name)
        message = inner.add() if field.is_repeated else inner
    last = way[-1]
    if last.is_repeated and last.message_type is not None:
        getattr(message, last.name).extend(GetMessageClass(last.message_type)() for _ in range(2_000))
    elif last.is_repeated:
        getattr(message, last.name).extend(["x" if last.type == last.TYPE_STRING else 1] * 1_000_000)
    else:
        setattr(message, last.name, "x" * 9_000_000)
    return request


def test_a_field_that_is_too_long_is_refused_by_its_name() -> None:
    """S1"""
    assert len(WAYS) > 100
    for kind, way in WAYS:
        path = ".".join(field.name.removesuffix("_json") for field in way)
        with pytest.raises(InvalidArgument) as told:
            check_texts(filled(kind, way))
        assert told.value.details["field"] == path, kind.name
        assert len(told.value.message) < 200, (kind.name, path)


def test_a_text_in_a_list_is_bounded_too() -> None:
    with pytest.raises(InvalidArgument, match="partitions is 5,000 bytes long"):
        check_texts(pb.StartOperationRequest(partitions=["a", "é" * 2_500]))


def test_usual_texts_are_accepted() -> None:
    check_texts(pb.StartOperationRequest())
    follow_up = pb.FollowUp(type="b", argument_json="{}", then=pb.FollowUp(type="c", partitions=["1"]))
    request = pb.StartOperationRequest(table="t", type="a", started_by="ana", then=follow_up)
    request.partitions.extend(f"p{number}" for number in range(10_000))
    check_texts(request)


def test_a_callers_name_can_be_read() -> None:
    with pytest.raises(InvalidArgument, match="invisible character"):
        check_texts(pb.StartOperationRequest(started_by="ana\u202e"))
