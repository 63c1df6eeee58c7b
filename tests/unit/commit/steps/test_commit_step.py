"""Finding commit steps by name."""

from __future__ import annotations

import pytest

from distop.commit.iceberg.append import IcebergAppend
from distop.commit.steps.contract import StepRegistry
from distop.errors import InvalidArgument, UnknownCommitStep
from distop.metastore.records.operation import StepRecord

NAMED = [
    "iceberg.append=distop.commit.iceberg.append:IcebergAppend",
    "odd=distop.commit.steps.contract:StepRegistry",
]


def test_a_step_is_made_from_its_record() -> None:
    """C11"""
    step = StepRegistry(NAMED).load(StepRecord(step="iceberg.append", argument={"expectedSnapshotId": None}))
    assert isinstance(step, IcebergAppend)
    assert step.argument == {"expectedSnapshotId": None}


@pytest.mark.parametrize("name", ["iceberg.unheard_of", "odd"])
def test_an_unknown_step_is_reported_by_name(name: str) -> None:
    """C11: a newer version wrote it; says what to do."""
    with pytest.raises(UnknownCommitStep, match=f"'{name}'.*known: .*iceberg.append") as caught:
        StepRegistry(NAMED).load(StepRecord(step=name))
    assert caught.value.details == {"step": name}
    assert "upgrade" in caught.value.hint


def test_steps_named_by_hand_are_checked() -> None:
    """U3"""
    for item in ("IcebergAppend", "x=IcebergAppend"):
        with pytest.raises(InvalidArgument, match="does not name a commit step"):
            StepRegistry([item])
