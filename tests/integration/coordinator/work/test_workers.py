"""Types of users that load slowly: loaded once, and nothing waits or fails for it."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distop.commit.contract import VARIABLE, default_registry
from distop.coordinator.work import processes
from distop.errors import UnknownOperationType
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json
from support.etcd.jobs import mark
from support.etcd.starts import begin, make_table
from support.services.coordinators import Service, serving

COUNT = 12
LOAD_S = 1.5

SOURCE = """
import os, time
from pathlib import Path

from distop.commit.contract import ExternalStep, StepState
from distop.metastore.records.operation import StepRecord
from distop.operations import DistributedOperation, Plan

def leave(name):
    with open(Path({folder!r}, name), "a") as log:
        log.write(f"{{os.getpid()}}\\n")

leave("loaded")
time.sleep({load_s})
{more}

class Type(DistributedOperation):
    type = {name!r}

    def plan(self, request):
        leave("called")
        return Plan(argument=dict(request.argument), partition_count=0)

    def run_job(self, job):
        return None

    def commit_steps(self, operation):
        leave("called")
        at = {{"table": operation.table}}
        return [StepRecord(step="slow.step", argument=at)] if operation.argument.get("step") else []

class Step(ExternalStep):
    def verify(self, context):
        done = Path({folder!r}, self.argument["table"]).exists()
        return StepState.DONE if done else StepState.NOT_DONE

    def execute(self, context):
        leave("executed")
        leave(self.argument["table"])
"""


@dataclass(frozen=True)
class SlowType:
    """A type in a module of its own, which takes a while to load."""

    name: str
    folder: Path

    @property
    def setting(self) -> str:
        return f"{self.name}:Type"

    def noted(self, what: str) -> Counter[int]:
        """How often each process has loaded the module, or run its code."""
        path = self.folder / what
        return Counter(map(int, path.read_text().split()) if path.exists() else [])


def slow_type(folder: Path, more: str = "") -> SlowType:
    name = f"slow_{folder.name}".replace("-", "_")
    source = SOURCE.format(folder=str(folder), load_s=LOAD_S, name=name, more=more)
    (folder / f"{name}.py").write_text(source)
    return SlowType(name, folder)


async def start(service: Service, table: str, kind: str, argument: dict[str, Any]) -> OperationId:
    """An operation, however long the machine takes for it."""
    argument_json = to_json(argument, "argument")
    request = pb.StartOperationRequest(table=table, type=kind, argument_json=argument_json)
    return OperationId.parse((await service.operations.StartOperation(request, timeout=60)).name)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowType]:
    monkeypatch.syspath_prepend(tmp_path)
    kind = slow_type(tmp_path)
    monkeypatch.setenv(VARIABLE, f"slow.step={kind.name}:Step")
    default_registry.cache_clear()
    yield kind
    default_registry.cache_clear()


@pytest.mark.slow("loads a module for 1.5 s, twice")
async def test_a_module_that_loads_slowly_is_loaded_once_for_all_workers(
    etcd_config: EtcdConfig, slow: SlowType
) -> None:
    """G5: before the first call, so that starts which come together do not wait for it."""
    async with serving(etcd_config, operations=[slow.setting]) as service:
        loaded = slow.noted("loaded")
        assert set(loaded.values()) == {1}
        # The coordinator, for what it must know of the type, and the process that workers are forked from.
        assert len(loaded) == 2
        assert os.getpid() in loaded
        tables = [f"t{number}" for number in range(COUNT)]
        await asyncio.gather(*map(service.create_table, tables))
        argument = {"step": True}
        operations = await asyncio.gather(*(start(service, t, slow.name, argument) for t in tables))
        ends = await asyncio.gather(*(service.ended(operation, 60) for operation in operations))
        assert {(seen.state, seen.completion.attempts) for seen in ends} == {(pb.SUCCEEDED, 0)}
    assert slow.noted("loaded") == loaded
    workers = slow.noted("called") + slow.noted("executed")
    assert workers.total() == 3 * COUNT
    assert not workers.keys() & loaded.keys()


@pytest.mark.slow("loads a module for 1.5 s, in each process")
async def test_a_module_that_starts_threads_is_loaded_by_each_worker_and_not_counted_as_its_call(
    etcd_config: EtcdConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5: forks would lack its threads. A limit that is shorter than loading ends nothing."""
    monkeypatch.syspath_prepend(tmp_path)
    more = "import threading; threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()"
    kind = slow_type(tmp_path, more)
    async with serving(etcd_config, operations=[kind.setting], call_timeout_s=LOAD_S / 2) as service:
        await service.create_table("t")
        ended = await service.ended(await start(service, "t", kind.name, {}), 60)
        assert (ended.state, ended.completion.attempts) == (pb.SUCCEEDED, 0)
    loaded = kind.noted("loaded")
    assert set(loaded.values()) == {1}
    assert kind.noted("called").keys() < loaded.keys()


@pytest.mark.slow("loads a module for 1.5 s, twice")
async def test_a_restart_parks_nothing_whose_type_loads_slowly(
    etcd_config: EtcdConfig, client: EtcdClient, slow: SlowType
) -> None:
    """O17, G5: all are to be committed at once, and the limit of a call is shorter than loading."""
    operations = []
    for number in range(COUNT):
        await make_table(client, f"t{number}")
        kind, argument = slow.name, {"step": True}
        started = await begin(client, table=f"t{number}", kind=kind, argument=argument, partition_count=1)
        await mark(client, started, "0")
        operations.append(started)
    async with serving(etcd_config, operations=[slow.setting], call_timeout_s=LOAD_S / 2) as service:
        ends = await asyncio.gather(*(service.ended(operation, 60) for operation in operations))
        assert {(seen.state, seen.completion.attempts) for seen in ends} == {(pb.SUCCEEDED, 0)}
    assert slow.noted("executed").total() == COUNT


@pytest.mark.slow("loads a module for 1.5 s, twice")
async def test_workers_are_no_more_than_memory_has_room_for(
    etcd_config: EtcdConfig, slow: SlowType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5: others wait for their turn."""
    monkeypatch.setattr(processes, "memory_bytes", lambda: 3 * processes.WORKER_BYTES)
    monkeypatch.setattr(processes, "FEWEST", 1)
    async with serving(etcd_config, operations=[slow.setting]) as service:
        tables = [f"t{number}" for number in range(COUNT)]
        await asyncio.gather(*map(service.create_table, tables))
        operations = await asyncio.gather(*(start(service, table, slow.name, {}) for table in tables))
        await asyncio.gather(*(service.ended(operation, 60) for operation in operations))
    # Three for planning, three for publishing.
    assert len(slow.noted("called")) <= 6


@pytest.mark.parametrize("setting", ["no.such.module:Type", "support.types.probes:Nothing", "nonsense"])
async def test_a_wrong_setting_keeps_no_other_type_from_working(
    etcd_config: EtcdConfig, tmp_path: Path, setting: str
) -> None:
    """G5, U3: it is named to whoever misses its type."""
    async with serving(etcd_config, operations=[setting, "support.types.probes:Hooked"]) as service:
        await service.create_table("t")
        with pytest.raises(UnknownOperationType, match=f"{setting} cannot be used: "):
            await service.start("t", "missed")
        log = {"log": str(tmp_path / "log"), "partitions": 0}
        assert (await service.ended(await start(service, "t", "hooked", log), 60)).state == pb.SUCCEEDED
