"""What an asset and its resource do, with a table in memory and no service."""

from types import SimpleNamespace
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, Failure
from distop_dagster import DistopResource, asset

from distop.client import Batch
from distop.client.backfill import Backfill
from distop.process.secret import Secret

DAY = "2013-01-01"


class Service:
    """A table, and a client of it: a batch is applied at once, and an operation succeeds, once per run."""

    name = "flights"

    def __init__(self) -> None:
        self.state, self.last = "", ""
        self.runs: dict[str, str] = {}
        self.waits: list[str] = []
        self.cancelled: list[str] = []
        self.is_interrupted = False

    def start(self, *_: Any, run: str) -> SimpleNamespace:
        name = self.last = self.runs.setdefault(run, f"flights/ingest/{len(self.runs) + 1}")
        if self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt
        return SimpleNamespace(name=name, result=lambda: name, cancel=lambda _: self.cancelled.append(name))

    def operation(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(get=lambda: name)

    def batch(self, name: str) -> Batch:
        return Batch(name=name, state=self.state, operation=self.last, decided_by="ann")

    def backfill(self, *_: Any, replace: bool, **__: Any) -> None:
        if not self.state or (self.state == "applied" and replace):
            self.state = "applied"
            self.start(run=str(len(self.runs)))

    def watch_backfill(self, batches: list[str]) -> Any:
        while self.waits:
            yield Backfill(table=self.name, first=DAY, last=DAY, batches=1, waiting=1)
            self.waits.pop()
        yield Backfill(table=self.name, first=DAY, last=DAY, batches=1)

    def why(self) -> SimpleNamespace:
        return SimpleNamespace(mood="stuck", sentence=self.waits[-1])


class Runs:
    """Runs of Dagster, which materialize the partition, or the asset as a whole."""

    def __init__(self, service: Any) -> None:
        self._service, self._instance = service, DagsterInstance.ephemeral()
        self.logged: list[str] = []

    def run(self, *, repeats: DagsterRun | None = None, fails: bool = False, batch: bool = True) -> Any:
        """The run, and its operation. One that repeats another has its tags, as from Dagster's page."""
        run = DagsterRun(
            job_name="job",
            tags=dict(self._instance.get_run_by_id(repeats.run_id).tags) if repeats else {},  # type: ignore[union-attr]
            status=DagsterRunStatus.FAILURE if fails else DagsterRunStatus.SUCCESS,
            parent_run_id=repeats.run_id if repeats else None,
            root_run_id=(repeats.root_run_id or repeats.run_id) if repeats else None,
        )
        self._instance.add_run(run)
        log = SimpleNamespace(
            info=lambda *_: None, warning=lambda text, *words: self.logged.append(text % words)
        )
        context: Any = SimpleNamespace(
            run=run,
            run_id=run.run_id,
            instance=self._instance,
            partition_key=DAY,
            asset_key=SimpleNamespace(to_user_string=lambda: "_flights"),
            log=log,
        )
        if batch:
            return run, asset._apply(context, self._service, self._service, "ingest", {})
        return run, asset._run(context, self._service, "flights", "ingest", {})


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def runs(service: Service) -> Runs:
    return Runs(service)


@pytest.mark.parametrize("batch", [True, False])
def test_a_run_that_repeats_one_does_its_work_if_that_had_failed_and_else_works_anew(
    runs: Runs, batch: bool
) -> None:
    failed, first = runs.run(fails=True, batch=batch)
    done, repeated = runs.run(repeats=failed, batch=batch)
    assert repeated == first
    anew, second = runs.run(repeats=done, fails=True, batch=batch)
    assert second != first
    assert runs.run(repeats=anew, batch=batch)[1] == second
    assert runs.run(batch=batch)[1] not in (first, second)


def test_a_skipped_batch_is_a_failure_that_says_by_whom(runs: Runs, service: Service) -> None:
    service.state = "skipped"
    with pytest.raises(Failure, match=r"skipped by ann.*distop batch add flights 2013-01-01") as failure:
        runs.run()
    assert not failure.value.allow_retries


def test_a_batch_whose_replacement_was_skipped_is_a_failure(
    runs: Runs, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.run()
    monkeypatch.setattr(service, "backfill", lambda *_, **__: None)
    with pytest.raises(Failure, match="its replacement was skipped"):
        runs.run()


def test_what_a_batch_waits_for_is_logged_once(runs: Runs, service: Service) -> None:
    service.waits = ["the gate is closed"] * 3
    runs.run()
    assert runs.logged == [f"batch {DAY} waits: the gate is closed"]


def test_an_operation_is_cancelled_if_its_start_was_interrupted(runs: Runs, service: Service) -> None:
    service.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        runs.run(batch=False)
    assert service.cancelled == list(service.runs.values())


def test_the_name_of_a_run_is_valid(runs: Runs, service: Service) -> None:
    runs.run(batch=False)
    (name,) = service.runs
    assert not name.startswith("_")


def test_what_a_resource_is_not_given_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: Any = {}
    monkeypatch.setattr("distop_dagster.resource.Client", lambda *_, **given: shown.update(given))
    monkeypatch.setenv("DISTOP_TOKEN", "t")
    monkeypatch.setenv("DISTOP_INSECURE", "1")
    DistopResource(ca="/ca").client()
    assert (shown["credentials"].token, shown["credentials"].ca) == (Secret("t"), "/ca")
    assert shown["credentials"].insecure
    DistopResource(token_file="/t", insecure=False).client()
    assert (shown["credentials"].token, shown["credentials"].token_file) == (Secret(""), "/t")
    assert not shown["credentials"].insecure
