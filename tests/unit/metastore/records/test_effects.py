"""Which operations may run on one table at the same time."""

import pytest

from distop.metastore.records.operation import Effect, OperationArg, may_run_together
from distop.metastore.records.record import decode, encode


@pytest.mark.parametrize("one", Effect)
@pytest.mark.parametrize("other", Effect)
def test_compatibility_does_not_depend_on_which_operation_came_first(one: Effect, other: Effect) -> None:
    """O3."""
    assert may_run_together(one, other) == may_run_together(other, one)


@pytest.mark.parametrize("other", Effect)
def test_an_operation_that_declares_no_effects_runs_alone(other: Effect) -> None:
    """O3: and nothing declares less unless it says so."""
    assert not may_run_together(Effect.REPLACES, other)
    assert OperationArg(table="t", type="x", instance=1).effect is Effect.REPLACES


def test_nothing_is_cleaned_beside_a_reader() -> None:
    """Its snapshot must not expire while it reads."""
    assert not may_run_together(Effect.READS, Effect.CLEANS)


def test_a_deletion_runs_beside_what_reads_or_brings_rows() -> None:
    """O3: what replaces the same files, or forgets the snapshot that it reads, waits."""
    beside = {other for other in Effect if may_run_together(Effect.DELETES, other)}
    assert beside == {Effect.READS, Effect.APPENDS, Effect.WRITES}


@pytest.mark.parametrize("effect", Effect)
def test_the_effect_is_recorded(effect: Effect) -> None:
    record = OperationArg(table="t", type="x", instance=1, effect=effect)
    assert decode(encode(record), OperationArg).effect is effect
