"""What hook and operator do, without Airflow's services and without a coordinator."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowFailException
from distop_airflow import DistopHook, DistopOperator, DistopWatermarkSensor
from distop_airflow.operator import LONGEST_NAME, run_of
from distop_airflow.trigger import WatermarkTrigger

from distop.errors import DistopError, TableNotFound, Unavailable


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the last client was made with, and ``cancelled``, by it."""
    record: dict[str, Any] = {"cancelled": []}

    class Client:
        def __init__(self, **given: Any) -> None:
            record.update(given)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def operation(self, name: str) -> SimpleNamespace:
            return SimpleNamespace(cancel=lambda _: record["cancelled"].append(name))

    monkeypatch.setattr("distop_airflow.hook.Client", Client)
    return record


def connected(monkeypatch: pytest.MonkeyPatch, uri: str) -> DistopHook:
    monkeypatch.setenv("AIRFLOW_CONN_DISTOP_DEFAULT", uri)
    return DistopHook()


@pytest.mark.parametrize(
    ("extra", "insecure"),
    [("", False), ("?insecure=false", False), ("?insecure=0", False), ("?insecure=true", True)],
)
def test_the_token_is_sent_unencrypted_only_if_the_connection_says_insecure(
    monkeypatch: pytest.MonkeyPatch, shown: dict[str, Any], extra: str, insecure: bool
) -> None:
    connected(monkeypatch, f"distop://:token@host:7070/{extra}").get_conn()
    assert shown["credentials"].insecure is insecure


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("host", 7070, "host:7070"),
        ("a:7070,b:7070", None, "a:7070,b:7070"),
        ("::1", 7070, "[::1]:7070"),
        ("[::1]", 7070, "[::1]:7070"),
    ],
)
def test_an_address_has_host_and_port(
    monkeypatch: pytest.MonkeyPatch, shown: dict[str, Any], host: str, port: int | None, address: str
) -> None:
    connection = Connection(conn_id="c", conn_type="distop", host=host, port=port)
    monkeypatch.setattr(DistopHook, "get_connection", lambda *_: connection)
    DistopHook().get_conn()
    assert shown["address"] == address


def test_a_kill_needs_no_answer_of_airflow(monkeypatch: pytest.MonkeyPatch, shown: dict[str, Any]) -> None:
    """It comes while the task waits for another answer of it."""
    connected(monkeypatch, "distop://host:7070/?page=http%3A%2F%2Fpage")
    operator = DistopOperator(task_id="load", table="flights")

    def killed(*_: Any) -> None:
        for asks in ("distop_airflow.hook.DistopHook.get_connection", "airflow.sdk.log.mask_secret"):
            monkeypatch.setattr(asks, lambda *_: pytest.fail("asked Airflow"))
        operator.on_kill()

    ti: Any = task()
    ti.xcom_push = killed
    operator._follow({"ti": ti}, "flights/ingest/1")  # type: ignore[typeddict-item]
    assert shown["cancelled"] == ["flights/ingest/1"]


def task(dag: str = "d", name: str = "t", run: str = "r", index: int = -1) -> Any:
    return SimpleNamespace(dag_id=dag, task_id=name, run_id=run, map_index=index)


def test_no_two_tasks_share_a_name_of_runs() -> None:
    tasks = [
        task("a", "b.c"),
        task("a.b", "c"),
        task("a", "b", "c.1"),
        task("a", "b", "c", 1),
        task("_a", "b"),
    ]
    tasks += [task("a" * 250, "b" * 250, run) for run in ("x" * 20, "y" * 20)]
    names = {run_of(each) for each in tasks}
    assert len(names) == len(tasks)
    assert not [name for name in names if name.startswith("_") or len(name.encode()) > LONGEST_NAME]


def test_a_sensor_in_the_triggerer_waits_while_no_coordinator_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Any] = [Unavailable("nobody answers"), {}, {"source": {"day": "7"}}]

    class Table:
        async def watermarks(self, _: str) -> Any:
            if isinstance(answer := answers.pop(0), DistopError):
                raise answer
            return answer

    async def connected(_: DistopHook) -> Any:
        return nullcontext(SimpleNamespace(table=lambda _: Table()))

    async def event(trigger: WatermarkTrigger) -> Any:
        return (await anext(trigger.run())).payload

    monkeypatch.setattr(DistopHook, "aget_conn", connected)
    trigger = WatermarkTrigger("c", "flights", "source", "day", "", every_s=0.0)
    assert asyncio.run(event(trigger)) == {"value": "7"}
    answers.append(TableNotFound("there is none"))
    assert asyncio.run(event(trigger))["error"]["code"] == "TABLE_NOT_FOUND"


def test_a_sensor_in_the_worker_waits_while_no_coordinator_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[DistopError] = [Unavailable("nobody answers"), TableNotFound("there is none")]

    def watermarks(_: str) -> Any:
        raise errors.pop(0)

    table = SimpleNamespace(watermarks=watermarks)
    monkeypatch.setattr(DistopHook, "get_conn", lambda _: nullcontext(SimpleNamespace(table=lambda _: table)))
    sensor = DistopWatermarkSensor(task_id="there", table="flights", source="source", partition="day")
    context: Any = {}
    assert not sensor.poke(context)
    with pytest.raises(AirflowFailException):
        sensor.poke(context)
