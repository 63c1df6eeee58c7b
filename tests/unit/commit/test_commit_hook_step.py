"""The commit step that calls code of the user."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from distop.commit.contract import StepState
from distop.commit.execution import StepFailed, execute
from distop.commit.hook import Hook, HookArgument, HookCall
from distop.errors import LeadershipLost, OutcomeUnknown, PermanentStepError, UnknownCommitStep
from distop.metastore import crashpoints
from distop.metastore.records.operation import CommitSequence
from support.types import hooks
from support.types.step_worlds import TOKEN, World

CALL = HookArgument(call="support.types.hooks:note", argument={"to": "ops@example.org 🦆"})


@pytest.fixture(autouse=True)
def _fresh() -> None:
    hooks.calls.clear()


def run(call: HookArgument, tmp_path: Path) -> None:
    sequence = CommitSequence.of("t/k/3", "u1", [call.record()])
    execute(sequence, World(str(tmp_path)).context, check=lambda: None)


def test_a_hook_is_told_the_same_token_each_time(tmp_path: Path) -> None:
    """O17, C3: nobody can see that it was called, so it is called again."""
    for _ in range(2):
        run(CALL, tmp_path)
    assert [(call.token, call.table, call.operation) for call in hooks.calls] == [(TOKEN, "t", "t/k/3")] * 2
    assert hooks.calls[0].argument == {"to": "ops@example.org 🦆"}
    assert Hook(CALL.record().argument).verify(World(str(tmp_path)).context) is StepState.UNKNOWN


@pytest.mark.parametrize(("point", "calls"), [("before", 1), ("after", 2)])
def test_a_hook_is_called_again_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, calls: int
) -> None:
    """C4"""
    monkeypatch.setattr(crashpoints, "_PLAN", f"step.hook.{point}=lost")
    with pytest.raises(StepFailed) as caught:
        run(CALL, tmp_path)
    assert isinstance(caught.value.cause, OutcomeUnknown)
    monkeypatch.undo()
    run(CALL, tmp_path)
    assert len(hooks.calls) == calls


@pytest.mark.parametrize(
    "name", ["nowhere:note", "support.types.hooks:nothing", "support.types.hooks:calls", "an entry point"]
)
def test_a_hook_that_is_not_installed_here_is_named(tmp_path: Path, name: str) -> None:
    """C11: it may be elsewhere."""
    with pytest.raises(StepFailed, match=f"no hook '{name}'") as caught:
        run(HookArgument(call=name), tmp_path)
    assert isinstance(caught.value.cause, UnknownCommitStep)


def test_a_hook_says_whether_it_makes_sense_to_call_it_again(tmp_path: Path) -> None:
    """C10, O18"""
    for name, permanent in (("flaky", False), ("never", True)):
        with pytest.raises(StepFailed) as caught:
            run(HookArgument(call=f"support.types.hooks:{name}"), tmp_path)
        assert isinstance(caught.value.cause, PermanentStepError) is permanent


def test_a_hook_is_not_called_by_who_may_not_act(tmp_path: Path) -> None:
    """O24: and can ask itself."""
    context = replace(World(str(tmp_path)).context, check=Mock(side_effect=LeadershipLost))
    with pytest.raises(LeadershipLost):
        Hook(CALL.record().argument).execute(context)
    assert hooks.calls == []
    run(CALL, tmp_path)
    call: HookCall = hooks.calls[0]
    call.check()
