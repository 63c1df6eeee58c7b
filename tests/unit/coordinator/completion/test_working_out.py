"""From the steps that an operation asks for to those that are logged."""

import pytest

from distop.commit import contract
from distop.commit.contract import FinishContext
from distop.coordinator.completion.publication import work_out
from distop.errors import InvalidArgument, UnknownCommitStep
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.metastore.records.table import TableRecord
from distop.operations.api import OperationView
from support.refusals import refused
from support.types.numbered_steps import REGISTRY

ARG = OperationArg(table="t", type="k", instance=3, uuid="u", location="/nowhere")
KEYS = Keyspace().table("t")
FINISH = FinishContext(
    table=TableRecord(name="t", location="/nowhere"),
    keys=KEYS,
    head=KeyValue.missing(KEYS.head),
    watermarks=KeyValue.missing(KEYS.watermarks),
    view=OperationView(arg=ARG, jobs={}, token="t/k/3/u"),
)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "default_registry", lambda: REGISTRY)


def many(of: str, stage: int = 0) -> StepRecord:
    return StepRecord(step="many", argument={"of": of}, stage=stage)


def test_plans_are_worked_out_and_transactional_steps_are_left_out() -> None:
    """C16: the stages of a plan begin at its own."""
    last = StepRecord(step="note", argument={"n": 7}, stage=3)
    planned = work_out(FINISH, [last, StepRecord(step="pointer"), many("note", stage=1)])
    assert [(s.argument["n"], s.stage) for s in planned.steps] == [(0, 1), (2, 1), (1, 2), (3, 2), (7, 3)]
    assert (planned.operation, planned.uuid) == (str(ARG.id), ARG.uuid)


def test_plans_that_come_to_something_else_are_refused() -> None:
    """U3, C11: before anything is logged."""
    with pytest.raises(InvalidArgument, match=r"'pointer', .*not external"):
        work_out(FINISH, [many("pointer")])
    for unknown in (many("teleport"), StepRecord(step="teleport")):
        with refused(error=UnknownCommitStep, step="teleport"):
            work_out(FINISH, [unknown])
