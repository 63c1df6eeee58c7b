"""Executing commit sequences: order, bounds, failures, what is left out and taken back; steps by name."""

import pickle
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from distop import errors
from distop.commit.contract import StepContext, StepRegistry
from distop.commit.execution import StepFailed, execute, undo
from distop.errors import (
    CorruptRecord,
    InvalidArgument,
    LeadershipLost,
    PermanentStepError,
    PreconditionFailed,
    UnknownCommitStep,
)
from distop.lake.iceberg.append import IcebergAppend
from distop.metastore.records.operation import CommitSequence, OperationArg, StepRecord
from distop.metastore.records.table import TableRecord
from support.refusals import refused
from support.types.numbered_steps import REGISTRY, world

ARG = OperationArg(table="t", type="k", instance=3, uuid="u", location="/nowhere")
CONTEXT = StepContext(table=TableRecord(name="t", location="/nowhere"), arg=ARG, token="t/k/3/u")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    world.begin()


def step(n: int, stage: int = 0, kind: str = "note") -> StepRecord:
    return StepRecord(step=kind, argument={"n": n}, stage=stage)


def sequence(*steps: StepRecord) -> CommitSequence:
    return CommitSequence.of(str(ARG.id), ARG.uuid, steps)


def run(*steps: StepRecord, check: Callable[[], None] = lambda: None, **options: Any) -> None:
    execute(sequence(*steps), CONTEXT, check=check, registry=REGISTRY, **options)


def test_ten_thousand_steps_run_stage_after_stage_in_bounded_parallel() -> None:
    """C16: not in one thread, never more at a time than allowed, and each stage waits for those before."""
    busy, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(8, timeout=30)

    def count(n: int) -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        if n in range(8):
            together.wait()  # these eight are under way at one time, or this never ends
        with lock:
            busy -= 1

    world.before = count
    steps = [step(n, stage=n // 2_500) for n in range(10_000)]
    run(*reversed(steps[8:]), *steps[:8], workers=8)
    assert most == 8
    order = world.named("execute")
    assert sorted(order) == list(range(10_000))
    assert [n // 2_500 for n in order] == sorted(n // 2_500 for n in order)


def test_a_step_in_effect_is_skipped_and_one_that_cannot_tell_is_executed_again() -> None:
    """C3"""
    world.done.update({1, 3})
    run(step(1), step(2), step(3, kind="blind"))
    assert sorted(world.named("execute")) == [2, 3]


def test_a_step_that_was_executed_and_is_not_done_has_failed() -> None:
    """C5"""
    with pytest.raises(StepFailed, match="not done") as caught:
        run(step(1, kind="lazy"))
    assert not isinstance(caught.value.cause, PermanentStepError)


def test_a_failure_names_its_step_and_stops_the_rest() -> None:
    """C10"""
    world.fails[4] = OSError("no space left")
    says = r'commit step 4 \(note \{"n":4\}\) failed: CRASHED: OSError: no space left'
    with pytest.raises(StepFailed, match=says) as caught:
        run(*(step(n) for n in range(10)), step(99, stage=1), workers=1)
    failed = caught.value
    assert (failed.index, failed.record) == (4, step(4))
    assert failed.details == {"step": "note", "index": "4", "cause": "CRASHED"}
    assert world.named("execute") == [0, 1, 2, 3]
    copy = pickle.loads(pickle.dumps(failed))
    assert (copy.index, str(copy), copy.details) == (4, str(failed), failed.details)


def test_a_permanent_failure_comes_before_one_that_may_pass() -> None:
    """C6, C10"""
    both = threading.Barrier(2, timeout=30)
    world.before = Mock(side_effect=lambda n: both.wait())
    world.fails = {0: OSError("flaky"), 1: errors.StepConflict("foreign")}
    with pytest.raises(StepFailed, match="STEP_CONFLICT: foreign") as caught:
        run(step(0), step(1), workers=2)
    assert caught.value.index == 1


def test_nothing_is_begun_once_leadership_is_in_doubt() -> None:
    """O24: the check comes before each step and before each act; what it raises is not blamed on a step."""
    for allowed in range(6):
        world.done.clear()
        check = Mock(side_effect=[*[None] * allowed, LeadershipLost])
        with pytest.raises(LeadershipLost):
            run(*(step(n) for n in range(5)), check=check, workers=1)
        assert len(world.done) == allowed // 2


def test_steps_that_a_person_leaves_out() -> None:
    """C10: but none whose loss would lose rows."""
    run(step(0), step(1), step(2, stage=1), skip=[1])
    assert sorted(world.done) == [0, 2]
    with pytest.raises(PreconditionFailed, match="cannot be skipped"):
        run(step(0, kind="blind"), skip=[0])
    with pytest.raises(PreconditionFailed, match="has no commit step 7"):
        run(step(0), skip=[7])


def test_an_unknown_step_is_named_and_the_steps_before_it_are_done() -> None:
    """C11: blocks only itself."""
    with pytest.raises(StepFailed, match=r"commit step 1 .*UNKNOWN_COMMIT_STEP.*'teleport'") as caught:
        run(step(0), step(1, stage=1, kind="teleport"))
    assert world.done == {0}
    assert isinstance(caught.value.cause, UnknownCommitStep), "a newer coordinator may know it"


def test_taking_back_goes_the_other_way() -> None:
    """C16, P9: steps that could not be undone are reported."""
    steps = [step(0), step(1, stage=1), step(2, stage=1, kind="blind"), step(3, stage=2), step(4, stage=2)]
    run(*steps)
    world.fails[3] = OSError("busy")
    came = undo(sequence(*steps), CONTEXT, check=lambda: None, registry=REGISTRY, workers=1)
    assert (came.undone, came.left) == (3, [2, 3])
    assert world.named("undo") == [3, 4, 1, 0]
    with pytest.raises(LeadershipLost):
        undo(sequence(*steps), CONTEXT, check=Mock(side_effect=LeadershipLost), registry=REGISTRY)


def test_steps_of_another_operation_are_not_executed() -> None:
    """C19"""
    foreign = CommitSequence.of(str(ARG.id), "other", [step(0)])
    for act in (execute, undo):
        with pytest.raises(CorruptRecord, match="are of t/k/3"):
            act(foreign, CONTEXT, check=lambda: None, registry=REGISTRY)
    assert world.events == []


def test_a_step_of_another_kind_is_not_taken() -> None:
    """C11"""
    with pytest.raises(UnknownCommitStep, match="not transactional"):
        REGISTRY.load(step(0))
    with pytest.raises(UnknownCommitStep, match="not external"):
        REGISTRY.load_external(StepRecord(step="pointer"))


def test_equal_sequences_have_equal_digests_and_others_have_not() -> None:
    """C1"""
    one = sequence(step(0), step(1, stage=1))
    assert one.digest == sequence(step(1, stage=1), step(0)).digest
    others = [sequence(step(0)), sequence(step(0), step(1)), CommitSequence("t/k/4", "u", one.steps)]
    assert len({one.digest, *(other.digest for other in others)}) == 4
    with pytest.raises(InvalidArgument, match="not ordered"):
        CommitSequence(str(ARG.id), ARG.uuid, (step(0, stage=1), step(1)))


# -- by name ------------------------------------------------------------------------------------------

NAMED = [
    "iceberg.append=distop.lake.iceberg.append:IcebergAppend",
    "odd=distop.commit.contract:StepRegistry",
]


def test_a_step_is_made_from_its_record() -> None:
    """C11"""
    step = StepRegistry(NAMED).load(StepRecord(step="iceberg.append", argument={"expectedSnapshotId": None}))
    assert isinstance(step, IcebergAppend)
    assert step.argument == {"expectedSnapshotId": None}


@pytest.mark.parametrize("name", ["iceberg.unheard_of", "odd"])
def test_an_unknown_step_is_reported_by_name(name: str) -> None:
    """C11: a newer version wrote it; says what to do."""
    with refused(error=UnknownCommitStep, match="iceberg.append", step=name) as caught:
        StepRegistry(NAMED).load(StepRecord(step=name))
    assert "upgrade" in caught.value.hint


def test_steps_named_by_hand_are_checked() -> None:
    """U3"""
    for item in ("IcebergAppend", "x=IcebergAppend"):
        with pytest.raises(InvalidArgument, match="commit step"):
            StepRegistry([item])
