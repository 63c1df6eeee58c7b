"""Faults planted into the product: what the search must find, if it is worth anything.

A transaction is a value, so a compare is taken out of it on its way to etcd. One fault is of the code that
builds them: a start that plans once, and goes on with that plan when it has lost a race.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from unittest import mock

from distop.coordinator.starting.planner import Planner
from distop.metastore.etcd.txn import Compare, Get, Op, Put, Txn
from distop.metastore.records.operation import ABORTING
from explore.table import CHUNKS, KEYS


@dataclass(frozen=True)
class Plant:
    """Compares that are missing from some transactions."""

    scenario: str
    """Where it shows."""
    writes: Callable[[Op], bool]
    """One of the operations by which these transactions are known."""
    missing: Callable[[Compare], bool]
    replaces: Callable[[], AbstractContextManager[object]] = nullcontext
    """What else is put in the place of the product's code."""

    def __call__(self, txn: Txn) -> Txn:
        then = tuple(self(op) if isinstance(op, Txn) else op for op in txn.then)
        mine = any(not isinstance(op, Txn | Get) and self.writes(op) for op in txn.then)
        compares = tuple(compare for compare in txn.compares if not (mine and self.missing(compare)))
        return Txn(compares, then, txn.otherwise)


def _puts(key: Callable[[bytes], bool], value: bytes | None = None) -> Callable[[Op], bool]:
    return lambda op: isinstance(op, Put) and key(op.key) and value in (None, op.value)


def _on(*ends: bytes) -> Callable[[Compare], bool]:
    return lambda compare: compare.key.endswith(ends)


def _is_job(key: bytes) -> bool:
    return key.endswith(b".state") and key.count(b".") == 5


def _is_state(key: bytes) -> bool:
    return key.endswith(b".state") and key.count(b".") == 4


def _is_history(key: bytes) -> bool:
    return key.startswith(KEYS.history_prefix)


def _is_head(key: bytes) -> bool:
    return key == KEYS.head


def _is(word: bytes) -> Callable[[bytes], bool]:
    return lambda key: key.endswith(b"." + word)


async def _holds(*_: object) -> bool:
    return True


def _nothing(_: object) -> bool:
    return False


PLANTS: dict[str, Plant] = {
    "a start that goes on with the plan it made before": Plant(
        "starts", _nothing, _nothing, lambda: mock.patch.object(Planner, "holds", _holds)
    ),
    "a start that does not look whether its plan is of the present": Plant(
        "starts", _puts(_is(b"arg")), _on(b".head", b".watermarks")
    ),
    "a mark that does not look whether the job has a result": Plant(
        "marks", _puts(_is_job), lambda compare: _is_job(compare.key)
    ),
    "a mark without the state of its operation": Plant(
        "aborts", _puts(_is_job), lambda compare: _is_state(compare.key)
    ),
    "a mark without its run": Plant("marks", _puts(_is_job), _on(b".runner")),
    "a mark without its claim": Plant("claims", _puts(_is_job), _on(b".claim")),
    "a claim that does not look whether there is one": Plant("claims", _puts(_is(b"claim")), _on(b".claim")),
    "a run that is taken though somebody has it": Plant("marks", _puts(_is(b"runner")), _on(b".runner")),
    "a run that is taken though the operation is paused": Plant(
        "pauses", _puts(_is(b"runner")), _on(b".pause")
    ),
    "a seal without its epoch": Plant(
        "cancels", _puts(_is_state, ABORTING), lambda compare: compare.key == KEYS.coordinator
    ),
    "an election won though somebody leads": Plant(
        "leaders", _puts(_is(b"coordinator")), _on(b".coordinator")
    ),
    "a finish without its epoch": Plant("leaders", _puts(_is_history), _on(b".coordinator")),
    "a finish that does not look whether the head has moved": Plant(
        "leaders", _puts(_is_history), lambda compare: _is_head(compare.key)
    ),
    "a finish that does not look whether it was cancelled": Plant(
        "cancels", _puts(_is_history), _on(b".cancel")
    ),
    "a finish that does not look at what else runs": Plant("conflict", _puts(_is_history), _on(b".runOps")),
    "a fold that does not look whether the watermarks have moved": Plant(
        "folds", _puts(lambda key: key.startswith(CHUNKS)), _on(b".watermarks")
    ),
    "a cancellation that does not look at the operation": Plant(
        "cancels", _puts(_is(b"cancel")), lambda compare: _is_state(compare.key)
    ),
    "a start that does not look at what else runs": Plant("overwrites", _puts(_is(b"arg")), _on(b".runOps")),
    "a commit of another program that does not look whether the head has moved": Plant(
        "leaders", lambda op: isinstance(op, Put) and _is_head(op.key), _on(b".head")
    ),
}
"""What is planted, in the words of whoever left it out."""
