"""From the commit steps that an operation requests to those that are logged.

An operation's ``commit_steps`` may name steps of all three kinds. The transactional ones go into the
finishing transaction; the external ones, and those that plans expand to, form its commit sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distop.commit.steps.contract import (
    ExternalStep,
    FinishContext,
    StepPlan,
    StepRegistry,
    TransactionalStep,
    default_registry,
)
from distop.errors import InvalidArgument
from distop.metastore.records.operation import StepRecord
from distop.metastore.records.sequence import CommitSequence


@dataclass(frozen=True, kw_only=True)
class SortedSteps:
    """The requested steps, by kind, each kind in the requested order."""

    transactional: tuple[StepRecord, ...] = ()
    external: tuple[StepRecord, ...] = ()
    """External steps, and plans."""


def sort_steps(records: Sequence[StepRecord], registry: StepRegistry | None = None) -> SortedSteps:
    """Separate transactional steps from external ones.

    Raises
    ------
    UnknownCommitStep
        A step is unknown here; another coordinator may know it (C11).
    """
    registry = registry or default_registry()
    kinds = [(record, issubclass(registry.kind(record.step), TransactionalStep)) for record in records]
    return SortedSteps(
        transactional=tuple(record for record, transactional in kinds if transactional),
        external=tuple(record for record, transactional in kinds if not transactional),
    )


def plan_sequence(
    records: Sequence[StepRecord], context: FinishContext, registry: StepRegistry | None = None
) -> CommitSequence:
    """The commit sequence of an operation whose jobs are done; empty if there is nothing to do.

    Blocking; changes nothing. Call it only while no sequence of the operation is logged: files may have moved
    since.

    Parameters
    ----------
    records:
        External steps and plans, as :func:`sort_steps` gives them.

    Raises
    ------
    UnknownCommitStep
        A step is unknown here.
    InvalidArgument
        A plan expands to other steps than external ones, or to something that is not JSON.
    """
    registry = registry or default_registry()
    steps: list[StepRecord] = []
    for record in records:
        kind = registry.kind(record.step)
        if issubclass(kind, StepPlan):
            expanded = list(kind(record.argument).expand(context))
            known = {name: registry.kind(name) for name in {step.step for step in expanded}}
            if odd := sorted(name for name, kind in known.items() if not issubclass(kind, ExternalStep)):
                raise InvalidArgument(f"{record.step!r} expands to steps that are not external: {odd}")
            # A plan's own stages begin at the stage of the plan.
            steps += [
                StepRecord(step=s.step, argument=s.argument, stage=record.stage + s.stage) for s in expanded
            ]
        else:
            steps.append(record)
    arg = context.view.arg
    return CommitSequence.of(str(arg.id), arg.uuid, steps)


__all__ = ["CommitSequence", "SortedSteps", "plan_sequence", "sort_steps"]
