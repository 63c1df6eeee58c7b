"""What the page offers follows from the state of its object."""

import pytest

from distop.coordinator.access.rights import RIGHTS
from distop.coordinator.web.actions import VERBS, of_batch, of_operation, of_table
from distop.proto import distop_pb2 as pb
from distop.proto.commands import COMMANDS

PARKED = pb.Completion(parked=True, attempts=5, step="s", error=pb.OperationError(code="CRASHED"))


def test_every_action_has_its_command() -> None:
    assert VERBS.keys() <= COMMANDS.keys()


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (pb.Operation(state=pb.RUNNING), ["pause", "cancel"]),
        (pb.Operation(state=pb.RUNNING, pause=pb.Pause(scope="operation")), ["resume", "cancel"]),
        (pb.Operation(state=pb.RUNNING, pause=pb.Pause(scope="table")), ["pause", "cancel"]),
        (pb.Operation(state=pb.RUNNING, cancel_requested=True), []),
        (pb.Operation(state=pb.COMMITTING), []),
        (pb.Operation(state=pb.COMMITTING, completion=pb.Completion(running="a hook")), ["abort"]),
        (pb.Operation(state=pb.COMMITTING, completion=pb.Completion(attempts=1)), ["retry", "abort"]),
        (
            pb.Operation(state=pb.COMMITTING, completion=pb.Completion(parked=True, skippable=True)),
            ["retry", "skip", "abort"],
        ),
        (pb.Operation(state=pb.ABORTING), []),
        (pb.Operation(state=pb.SUCCEEDED), []),
    ],
)
def test_an_operation_offers_what_its_state_allows(operation: pb.Operation, expected: list[str]) -> None:
    operation.name = "t/noop/1"
    found = list(of_operation(operation))
    assert [action.do for action in found] == expected
    assert all(f"/distop.v1.{action.method}" in RIGHTS for action in found)


def test_a_form_names_what_its_decision_is_about() -> None:
    operation = pb.Operation(name="t/noop/1", state=pb.COMMITTING, completion=PARKED)
    retry, abort = of_operation(operation)
    assert retry.state == "parked, CRASHED at s"
    assert (retry.verb.typed, abort.verb.typed, abort.object) == (False, True, "t/noop/1")


def test_a_paused_table_starts_nothing() -> None:
    table = pb.Table(name="t", format="iceberg", snapshot_id=7)
    assert len(list(of_table(table))) == 5
    table.pause.scope = "table"
    assert [action.do for action in of_table(table)] == ["resume-table"]


def test_a_staged_batch_is_approved_on_the_branch_that_was_looked_at() -> None:
    staged = pb.Staged(batch="1", branch="b", operation="t/ingest/1", snapshot="7")
    ordering = pb.Ordering(table="t", awaiting="1", staged=staged)
    approve, *others = of_batch(pb.Batch(name="1", state="waiting"), ordering)
    assert approve.command == "distop batch approve t 1 --branch b"
    assert isinstance(approve.request, pb.ControlBacklogRequest)
    assert approve.request.branch == "b"
    assert approve.state == "approval, b, 7"
    assert [action.do for action in others] == ["retry-batch", "skip-batch", "remove-batch"]
    assert not list(of_batch(pb.Batch(name="1"), ordering)), "it cannot be read"
