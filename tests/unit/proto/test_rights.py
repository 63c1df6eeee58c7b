"""The table of rights: every method of the API is in it, with fields that its requests have."""

import pytest
from google.protobuf.message_factory import GetMessageClass

from distop.coordinator.access.rights import RIGHTS, RightScope, required
from distop.operations import Registry, Role
from distop.operations.noop import Noop
from distop.proto import distop_pb2 as pb


class Emptying(Noop):
    """A user's type that not every operator is to start."""

    type = "emptying"
    role = Role.ADMIN


REGISTRY = Registry([f"{__name__}:Emptying"])

METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_every_method_needs_a_right_and_names_what_it_is_needed_on() -> None:
    """S3: a call that is added without one fails here, and is refused by coordinators."""
    assert RIGHTS.keys() == METHODS.keys()
    for name, right in RIGHTS.items():
        fields = METHODS[name].input_type.fields_by_name
        named = right.scope in (RightScope.TABLE, RightScope.OPERATION, RightScope.NEW_TABLE)
        assert (right.field in fields) == named, name
        assert right.otherwise is None or right.field, name
        assert required(name, GetMessageClass(METHODS[name].input_type)(), REGISTRY).role >= right.role


@pytest.mark.parametrize(
    ("method", "request_", "role"),
    [
        (
            "OperationService/StartOperation",
            pb.StartOperationRequest(table="t", type="ingest"),
            Role.OPERATOR,
        ),
        ("OperationService/StartOperation", pb.StartOperationRequest(table="t", type="write"), Role.WRITER),
        (
            "OperationService/StartOperation",
            pb.StartOperationRequest(
                table="t", type="ingest", then=pb.FollowUp(type="noop", then=pb.FollowUp(type="write"))
            ),
            Role.WRITER,
        ),
        ("OperationService/StartOperation", pb.StartOperationRequest(table="t", type="delete"), Role.WRITER),
        ("OperationService/StartOperation", pb.StartOperationRequest(table="t", type="emptying"), Role.ADMIN),
        (
            "OperationService/StartOperation",
            pb.StartOperationRequest(table="t", type="?"),
            Role.OPERATOR,
        ),
        ("ScheduleService/AddSchedule", pb.AddScheduleRequest(table="t", type="delete"), Role.WRITER),
        (
            "BacklogService/ControlBacklog",
            pb.ControlBacklogRequest(table="t", action="approve"),
            Role.OPERATOR,
        ),
        ("BacklogService/ControlBacklog", pb.ControlBacklogRequest(table="t", action="skip"), Role.ADMIN),
        ("ClusterService/Diagnose", pb.DiagnoseRequest(table="t"), Role.READER),
        ("ClusterService/Diagnose", pb.DiagnoseRequest(table="t", fix=True), Role.ADMIN),
    ],
)
def test_a_request_that_asks_for_more_needs_more(method: str, request_: object, role: Role) -> None:
    assert required(f"/distop.v1.{method}", request_, REGISTRY).role is role
