"""The package for Airflow, under the real scheduler and triggerer: tasks killed, marked, cleared, retried."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop.client import Operation, OperationState
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from support.etcd.lossy import LossyClient
from support.processes import captured
from support.repository import ROOT
from support.schedulers import check_parts, environment_with, variables_for
from support.services.executing import runner
from support.services.whole import HEADER, Whole, coordinated, write_csv
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("installs Airflow, and runs its four services"),
    pytest.mark.timeout(900),
]

AIRFLOW_S = 240.0
"""What Airflow has not done by then it never does."""

DAYS = [f"2013-01-0{day}" for day in range(1, 7)]
"""One task ingests the files of each, into a table that no other task waits for."""

DAGS = {"daily_flights", "in_the_triggerer", "in_the_worker", "run_anew"}

APPS = ("core", "execution")
"""The parts of Airflow's API: that of people and programs, and that of tasks."""

FINAL = ("success", "failed")

SCHEMA = {"id": "long", "kind": "string", "day": "date"}

MORE_DAGS = """
from airflow.sdk import DAG
from distop_airflow import DistopOperator

ARGUMENT = {"paths": ["/data/flights/{{ ds }}"]}
OPTIONS = {"retries": 2, "retry_delay": 1, "table": "flights_{{ ds_nodash }}", "argument": ARGUMENT}

with DAG("in_the_triggerer"):
    DistopOperator(task_id="load", **OPTIONS)

with DAG("in_the_worker"):
    DistopOperator(task_id="load", deferrable=False, **OPTIONS)

with DAG("run_anew"):
    DistopOperator(task_id="load", rerun=True, **OPTIONS)
"""


def dag_of_the_page() -> str:
    """The DAG that docs/schedulers.md shows."""
    text = (ROOT / "docs/schedulers.md").read_text()
    found = re.search(r"<!-- dag:begin -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found
    return found[1]


class Airflow:
    """One installation: SQLite, tasks as processes of the scheduler."""

    def __init__(self, python: Path, home: Path, data: Path, address: str) -> None:
        self._program = python.with_name("airflow")
        self._home = home
        self._ports = {app: free_port() for app in APPS}
        self._url = f"http://127.0.0.1:{self._ports['core']}"
        self._token = ""
        self._writing = threading.Lock()
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        (home / "dags").mkdir(parents=True)
        for name, text in (("page", dag_of_the_page()), ("more", MORE_DAGS)):
            (home / "dags" / f"{name}.py").write_text(text.replace("/data/flights", str(data)))
        host, _, coordinator_port = address.rpartition(":")
        connection = {"conn_type": "distop", "host": host, "port": int(coordinator_port)}
        self._environment = variables_for("airflow") | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW_CONN_DISTOP_DEFAULT": json.dumps(connection | {"extra": {"page": "http://page:7071"}}),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # SQLite has one writer at a time; on a busy machine others wait for it longer than five seconds.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self._ports['execution']}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__BASE_URL": self._url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of this test, long enough for its algorithm " * 2,
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }

    def begin(self, *services: str) -> None:
        """Start services: ``scheduler``, ``triggerer``, ..., and servers of parts of the API."""
        for service in services:
            if service in APPS:
                command = ["api-server", "--apps", service, "--port", str(self._ports[service])]
            elif service in ("scheduler", "triggerer"):
                # Loopback is enough, and these would serve their logs to all.
                command = [service, "--skip-serve-logs"]
            else:
                command = [service]
            with (self._home / f"{service}.log").open("ab") as log:
                self._services[service] = subprocess.Popen(
                    [self._program, *command],
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def kill(self, service: str) -> None:
        """End it and all that it has started, at once."""
        process = self._services.pop(service)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)

    def stop(self) -> None:
        for service in list(self._services):
            self.kill(service)

    def migrate(self) -> None:
        done = captured([self._program, "db", "migrate"], env=self._environment, timeout=AIRFLOW_S)
        assert done.returncode == 0, done.stderr[-3000:]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A call of Airflow's API.

        One that writes at a time: the event loop of the server waits for SQLite to log it, while a thread
        that writes waits for the event loop to end its transaction: both until the time-out of the database.
        The calls of tasks, which write as well, have a server of their own.
        """
        if not self._token and path != "/auth/token":
            self._token = self.call("GET", "/auth/token")["access_token"]
        request = urllib.request.Request(
            self._url + path,
            data=json.dumps(body).encode() if body is not None else None,
            method=method,
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        turn = self._writing if method != "GET" else nullcontext()
        with turn, urllib.request.urlopen(request, timeout=AIRFLOW_S) as response:
            return json.loads(response.read() or b"null")

    def dags(self) -> set[str]:
        """Those that it has read so far."""
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            return {dag["dag_id"] for dag in self.call("GET", "/api/v2/dags")["dags"]}
        return set()

    async def trigger(self, dag: str, day: str) -> Task:
        """Run a DAG for a day."""
        body = {"logical_date": f"{day}T00:00:00Z", "dag_run_id": day}
        await asyncio.to_thread(self.call, "POST", f"/api/v2/dags/{dag}/dagRuns", body)
        return Task(self, dag, day)


class Task:
    """A task of one run of a DAG."""

    def __init__(self, airflow: Airflow, dag: str, day: str, name: str = "load") -> None:
        self._airflow, self.dag, self.day, self._name = airflow, dag, day, name
        self.table = "flights" if dag == "daily_flights" else f"flights_{day.replace('-', '')}"
        self._path = f"/api/v2/dags/{dag}/dagRuns/{day}/taskInstances/{name}"

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(self._airflow.call, method, path, body)

    async def get(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._call("GET", self._path)
        return found

    async def comes_to(self, state: str, *, tries: int = 0) -> dict[str, Any]:
        """The task, once it is in the state, and was tried so often."""

        def reached(task: dict[str, Any]) -> bool:
            return task["try_number"] >= tries and task["state"] in (state, *FINAL)

        found = await eventually(self.get, AIRFLOW_S, every_s=1, holds=reached)
        assert found["state"] == state, found
        return found

    async def xcom(self, key: str) -> Any:
        return (await self._call("GET", f"{self._path}/xcomEntries/{key}"))["value"]

    async def clear(self) -> None:
        """Once the scheduler has seen a state that is final: it would take the run as over otherwise."""
        if (await self.get())["state"] in FINAL:
            await eventually(self._run_is_over, AIRFLOW_S, every_s=1)
        body = {"dry_run": False, "only_failed": False, "dag_run_id": self.day, "task_ids": [self._name]}
        await self._call("POST", f"/api/v2/dags/{self.dag}/clearTaskInstances", body)

    async def _run_is_over(self) -> bool:
        return (await self._call("GET", f"/api/v2/dags/{self.dag}/dagRuns/{self.day}"))["state"] in FINAL

    async def mark(self, state: str) -> None:
        await self._call("PATCH", self._path, {"new_state": state})


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient) -> AsyncIterator[Whole]:
    """A coordinator, tables and files; the test says when jobs are run."""
    async with coordinated(etcd_config, tmp_path, client) as found:
        for table in ("flights", *(f"flights_{day.replace('-', '')}" for day in DAYS[1:])):
            await found.client.create_table(table, str(tmp_path / table), options={"schema": SCHEMA})
        for day in DAYS:
            write_csv(tmp_path / "data" / day, "1.csv", 0, 10)
        yield found


@pytest_asyncio.fixture
async def airflow(service: Whole) -> AsyncIterator[Airflow]:
    python = await asyncio.to_thread(environment_with, "airflow")
    found = Airflow(python, service.folder / "airflow", service.folder / "data", service.address)
    await asyncio.to_thread(found.migrate)
    try:
        found.begin(*APPS, "scheduler", "dag-processor", "triggerer")
        await eventually(lambda: asyncio.to_thread(found.dags), AIRFLOW_S, every_s=1, holds=DAGS.issubset)
        yield found
    finally:
        await asyncio.to_thread(found.stop)


def test_the_parts_of_the_package(tmp_path: Path) -> None:
    check_parts("airflow", tmp_path)


async def test_tasks_that_are_killed_marked_cleared_and_retried_ingest_once(
    service: Whole, airflow: Airflow
) -> None:
    """O7, P16. All at the same time in one Airflow, which takes long to start."""
    waiting = [await airflow.trigger("daily_flights", DAYS[0])]
    waiting += [await airflow.trigger("in_the_triggerer", day) for day in DAYS[1:3]]
    in_worker = await airflow.trigger("in_the_worker", DAYS[3])
    await asyncio.gather(*(task.comes_to("deferred") for task in waiting))
    await the_triggerer_is_killed(airflow, waiting)
    undisturbed, marked, cleared = waiting
    await asyncio.gather(
        a_waiting_task_is_marked_failed_and_cleared(service, marked),
        cleared.clear(),
        the_process_of_a_task_is_killed(service, in_worker),
    )
    async with runner(service.store):
        await asyncio.gather(
            a_task_that_has_succeeded_is_cleared(service, undisturbed, airflow),
            marked.comes_to("success"),
            a_task_that_was_cleared_while_it_waited_succeeds(service, cleared),
            in_worker.comes_to("success", tries=2),
            a_task_that_has_succeeded_runs_anew(service, await airflow.trigger("run_anew", DAYS[4])),
            a_bad_file_is_not_tried_again(service, airflow, DAYS[5]),
        )
    again, cancelled = await of_task(service, marked)
    assert (again.retry_of, again.state) == (cancelled.name, OperationState.SUCCEEDED)
    for task in (undisturbed, in_worker):
        assert len(await of_task(service, task)) == 1
    for task in (undisturbed, marked, cleared, in_worker):
        assert await asyncio.to_thread(service.ids, task.table) == list(range(10))


async def the_triggerer_is_killed(airflow: Airflow, waiting: Sequence[Task]) -> None:
    """Until another one waits for the same operations."""
    before = {(await task.get())["trigger"]["triggerer_id"] for task in waiting}
    airflow.kill("triggerer")
    airflow.begin("triggerer")

    async def taken_over() -> bool:
        triggers = [(await task.get())["trigger"] for task in waiting]
        return not {trigger["triggerer_id"] for trigger in triggers} & {*before, None}

    await eventually(taken_over, AIRFLOW_S, every_s=1)


async def the_process_of_a_task_is_killed(service: Whole, task: Task) -> None:
    await eventually(lambda: of_task(service, task), AIRFLOW_S, every_s=1)
    os.kill((await task.get())["pid"], signal.SIGKILL)


async def a_waiting_task_is_marked_failed_and_cleared(service: Whole, task: Task) -> None:
    """Its operation is cancelled with it."""
    (operation,) = await of_task(service, task)
    await task.mark("failed")
    ended = await service.client.operation(operation.name).wait(AIRFLOW_S)
    assert ended.state is OperationState.CANCELLED
    await task.clear()


async def a_task_that_was_cleared_while_it_waited_succeeds(service: Whole, task: Task) -> None:
    """Whether its next try has found the operation before that was cancelled, or after."""
    await task.comes_to("success", tries=2)
    states = [operation.state for operation in await of_task(service, task)]
    assert states.count(OperationState.SUCCEEDED) == 1
    assert set(states) <= {OperationState.SUCCEEDED, OperationState.CANCELLED}


async def a_task_that_has_succeeded_is_cleared(service: Whole, task: Task, airflow: Airflow) -> None:
    """It is done, by the operation that others have seen in XCom, link and events of assets."""
    await task.comes_to("success")
    (operation,) = await of_task(service, task)
    assert (operation.state, operation.facts["rows"]) == (OperationState.SUCCEEDED, 10)
    assert await task.xcom("operation") == operation.name
    assert (await task.xcom("return_value"))["rows"] == 10
    page = f"http://page:7071/operation?name={operation.name.replace('/', '%2F')}"
    assert await task.xcom("distop_page") == page
    events = (await asyncio.to_thread(airflow.call, "GET", "/api/v2/assets/events"))["asset_events"]
    assert [(event["extra"]["operation"], event["extra"]["rows"]) for event in events] == [
        (operation.name, 10)
    ]
    await Task(airflow, task.dag, task.day, "there").comes_to("success")
    await task.clear()
    await task.comes_to("success", tries=2)


async def a_task_that_has_succeeded_runs_anew(service: Whole, task: Task) -> None:
    """With ``rerun`` its rows are replaced by what the files have now."""
    await task.comes_to("success")
    write_csv(service.folder / "data" / task.day, "1.csv", 20, 5)
    await task.clear()
    await task.comes_to("success", tries=2)
    states = [operation.state for operation in await of_task(service, task)]
    assert states == [OperationState.SUCCEEDED] * 2
    assert await asyncio.to_thread(service.ids, task.table) == list(range(20, 25))


async def a_bad_file_is_not_tried_again(service: Whole, airflow: Airflow, day: str) -> None:
    """What no retry can mend is put right, and the task cleared."""
    file = service.folder / "data" / day / "1.csv"
    good = file.read_text()
    file.write_text(HEADER + "1,k1,2013-01-01\n" * 5 + "x,k1,2013-01-01\n")
    task = await airflow.trigger("in_the_triggerer", day)
    failed = await task.comes_to("failed")
    (operation,) = await of_task(service, task)
    assert (failed["try_number"], operation.state) == (1, OperationState.FAILED)
    file.write_text(good)
    await task.clear()
    await task.comes_to("success", tries=2)


async def of_task(service: Whole, task: Task) -> list[Operation]:
    """The operations of a task, the newest first."""
    name = f"airflow/{task.dag}/load/{task.day}"
    return [found async for found in service.client.operations(task.table) if found.run == name]
