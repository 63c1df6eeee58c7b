"""The commit sequence of an operation, as a value: its external steps, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import msgspec

from distop.errors import InvalidArgument
from distop.metastore.records.operation import StepRecord

# Sorted keys make equal steps equal bytes, whichever process made them.
_encoder = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True)
class CommitSequence:
    """The external steps of one operation: fixed before the first of them is executed (C1).

    Parameters
    ----------
    operation:
        Its name.
    uuid:
        Its uuid. A sequence with another uuid belongs to another operation.
    steps:
        Ordered by stage; the order within a stage has no meaning.

    Raises
    ------
    InvalidArgument
        Stages do not ascend, or a step is not valid JSON (such as a file name that is not Unicode).
    """

    operation: str
    uuid: str
    steps: tuple[StepRecord, ...]

    def __post_init__(self) -> None:
        stages = [step.stage for step in self.steps]
        if stages != sorted(stages) or (stages and stages[0] < 0):
            raise InvalidArgument(f"the commit steps of {self.operation} are not ordered by stage")
        _ = self.encoded

    @classmethod
    def of(cls, operation: str, uuid: str, steps: Iterable[StepRecord]) -> CommitSequence:
        """The sequence of steps in any order."""
        return cls(operation, uuid, tuple(sorted(steps, key=lambda step: step.stage)))

    @cached_property
    def encoded(self) -> tuple[bytes, ...]:
        """Each step as JSON."""
        try:
            return tuple(_encoder.encode(step) for step in self.steps)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"a commit step of {self.operation} is not JSON: {error}") from error

    @cached_property
    def digest(self) -> str:
        """Equal for equal sequences of the same operation, and for no others."""
        digest = hashlib.sha256(_encoder.encode([self.operation, self.uuid, len(self.steps)]))
        for step in self.encoded:
            digest.update(b"\n" + step)
        return digest.hexdigest()

    def stages(self) -> list[Mapping[int, StepRecord]]:
        """The steps of each stage by their index, in the order of stages."""
        numbered = groupby(enumerate(self.steps), key=lambda pair: pair[1].stage)
        return [dict(group) for _, group in numbered]

    def __len__(self) -> int:
        return len(self.steps)
