"""No call hangs: each of the API ends while etcd says nothing."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from distop.coordinator.access.rights import RIGHTS, RightScope
from distop.errors import EtcdUnavailable, OutcomeUnknown
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.proto import distop_pb2 as pb
from support.etcd.proxy import Proxy
from support.services.coordinators import serving, through
from support.services.methods import METHODS, refusal, request_of
from support.tables.nowhere import nowhere
from support.waiting import eventually

FIELDS: dict[str, dict[str, Any]] = {
    "StartOperation": {"type": "noop"},
    "PreviewOperation": {"type": "noop"},
    "ResolveOperation": {"action": "abort"},
    "CreateTable": {"location": nowhere()},
    "AlterTable": {"changes_json": ['{"change": "add", "column": "x", "type": "long"}']},
    "ChangeWatermarks": {"action": "forget", "source": "s"},
    "DrainCoordinator": {"member": "m"},
    "EnqueueBatch": {"batch": "b", "type": "noop"},
    "SetOrdering": {"gate": "open"},
    "ControlBacklog": {"action": "open"},
    "AddSchedule": {"name": "nightly", "type": "noop", "cron": "0 2 * * *"},
    "ControlSchedule": {"name": "nightly", "action": "pause"},
    "RunSchedule": {"name": "nightly", "tick": "2026-01-01"},
    "ChangeGrants": {"add": [pb.Grant(who="a", role="admin", tables=["*"])]},
}
"""What else a request of a method needs to make sense."""


ANSWERED = {"Diagnose", "ListGrants", "ChangeGrants", "RemoveKey"}
"""Calls that know an answer: what the doctor cannot look at is a finding, grants are remembered, and a key of
no installation is none to remove."""


NEVER_IN_DOUBT = {
    "CancelOperation",
    "GetOperation",
    "GetTable",
    "GetWatermarks",
    "ListLeaders",
    "ListMembers",
    "ListOperations",
    "ListTables",
    "RunSchedule",
    "StartOperation",
    "WatchOperation",
}
"""Calls that read before they write anything."""

GET = "/distop.v1.TableService/GetTable"


def request(method: str) -> Any:
    scope = RIGHTS[method].scope
    name = "t/noop/1" if scope is RightScope.OPERATION else "t" if RIGHTS[method].field else ""
    return request_of(method, name, **FIELDS.get(method.rpartition("/")[2], {}))


@pytest.mark.parametrize(
    ("how", "timeout_s"),
    [
        ("refused", 2.0),
        ("silent", 2.0),
        pytest.param("silent", None, marks=pytest.mark.slow("waits for the deadline of calls without one")),
    ],
)
async def test_no_call_hangs_while_etcd_is_silent(
    etcd_config: EtcdConfig, etcd: EtcdProcess, how: str, timeout_s: float | None
) -> None:
    """U4: each says what is wrong before the deadline of its caller, also if that one gave none. A write that
    was sent to a silent etcd is in doubt, and said to be."""
    async with (
        Proxy(etcd.endpoint) as proxy,
        serving(replace(through(etcd_config, proxy.endpoint), timeout_s=1.0)) as service,
    ):
        await service.create_table("t")
        if how == "refused":
            await proxy.refuse()
        else:
            proxy.hold_requests()
            proxy.hold_replies()
        calls = [refusal(service.channel, one, request(one), timeout_s=timeout_s) for one in METHODS]
        errors = await asyncio.wait_for(asyncio.gather(*calls), 60)
        said = {
            method.rpartition("/")[2]: error
            for method, error in zip(METHODS, errors, strict=True)
            if method.rpartition("/")[2] not in ANSWERED
        }
        for method, error in said.items():
            assert error is not None, method
            wanted = {EtcdUnavailable.code, OutcomeUnknown.code}
            if method == "CreateTable" and how == "silent":
                wanted = {OutcomeUnknown.code}
            elif method in NEVER_IN_DOUBT:
                wanted = {EtcdUnavailable.code}
            assert error.code in wanted, (method, error)
            assert (error.kind.grpc_status, error.retryable) == ("UNAVAILABLE", True), (method, error)
        proxy.flow()
        if how == "refused":
            await proxy.accept()
        get = partial(refusal, service.channel, GET, request(GET), timeout_s=2.0)
        await eventually(get, holds=lambda error: error is None)
