"""Operation types tried out in one process; the examples' own tests are run as their readers would."""

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distop import Trial
from distop.errors import Cancelled, InvalidArgument, JobResultTooLarge
from distop.operations import DistributedOperation, JobContext, OperationView, Plan, PlanRequest
from support.repository import ROOT

EXAMPLES = ROOT / "examples"


class Counting(DistributedOperation):
    """Counts to ``argument.to``, and saves each number."""

    type = "counting"
    resumable = True

    def __init__(self) -> None:
        self.cleaned: list[str] = []
        self.completed: list[str] = []

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(argument=dict(request.argument), partitions=["a", "b"])

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        begin = int(job.load_checkpoint() or b"0")
        for number in range(begin, int(job.operation.argument["to"])):
            job.save_checkpoint(b"%d" % (number + 1))
        return {"from": begin, "said": "x" * int(job.operation.argument.get("says", 0))}

    def cleanup_attempt(self, job: JobContext) -> None:
        self.cleaned.append(job.partition)

    def before_publish(self, operation: OperationView) -> None:
        self.completed.append(operation.token)


def test_a_job_is_cancelled_cleans_up_and_goes_on_from_its_checkpoint() -> None:
    kind = Counting()
    trial = Trial(kind, {"to": 5})
    first = trial.job("b", cancel_after=3)
    with pytest.raises(Cancelled):
        trial.run(first)
    assert (first.checkpoint, kind.cleaned, trial.jobs) == (b"3", ["b"], {})
    assert trial.run(trial.job("b", checkpoint=first.checkpoint))["from"] == 3
    assert trial.run("a")["from"] == 0
    assert trial.complete().token == trial.complete().token == kind.completed[0]


def test_what_a_service_would_refuse_is_refused() -> None:
    """U3: a result beyond its record, a checkpoint that is kept by nobody, a plan that is no JSON."""
    kind = Counting()
    with pytest.raises(JobResultTooLarge):
        Trial(kind, {"to": 1, "says": 1000}).run("a")
    assert kind.cleaned == ["a"]
    kind.resumable = False  # type: ignore[misc]
    with pytest.raises(InvalidArgument, match="no checkpoints"):
        Trial(kind, {"to": 1}).run("a")
    with pytest.raises(InvalidArgument):
        Trial(kind, {"to": object()})
    with pytest.raises(InvalidArgument, match="scratch"):
        Trial(kind, {"to": 1}).job().scratch_path()


def test_scratch_is_found_again_by_the_next_attempt(tmp_path: Path) -> None:
    trial = Trial(Counting(), {"to": 1}, scratch=tmp_path)
    (trial.job("a").scratch_path() / "run").write_text("sorted")
    assert (trial.job("a").scratch_path() / "run").read_text() == "sorted"


@pytest.mark.parametrize(("module", "count"), [("test_access_logs", 4), ("test_exports", 1)])
def test_the_tests_of_the_examples_pass(
    module: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `pytest examples` runs them, by their own fixture."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    examples = importlib.import_module(module)
    tests = [test for name, test in inspect.getmembers(examples) if name.startswith("test_")]
    assert len(tests) == count
    made = inspect.unwrap(examples.logs) if hasattr(examples, "logs") else Path
    for number, test in enumerate(tests):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        test(made(folder))


def test_sweeping_is_told_which_attempts_count() -> None:
    class Sweeping(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.counted: list[frozenset[str]] = []

        def cleanup(self, operation: OperationView) -> None:
            self.counted.append(operation.attempts)

    kind = Sweeping()
    trial = Trial(kind, {"to": 1})
    trial.run("a")
    assert trial.operation.stages_files
    assert trial.sweep().jobs.keys() == {"a"}
    assert trial.sweep(failed=True).error is not None
    assert kind.counted == [{trial.jobs["a"].attempt}, frozenset()]
