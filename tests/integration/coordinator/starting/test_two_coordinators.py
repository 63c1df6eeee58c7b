"""Starts on one table at two coordinators: each reads what the other has changed."""

from __future__ import annotations

import pytest

from distop.errors import IncompatibleOperation
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.operation_id import OperationId
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark
from support.services.coordinators import Service, serving


async def one(service: Service, client: EtcdClient) -> OperationId:
    """An operation from its start to its end."""
    operation = await service.start("t", "noop", {"partitions": 1})
    await mark(client, operation, "0")
    await service.ended(operation)
    return operation


async def test_what_others_have_started_meanwhile_counts(
    service: Service, etcd_config: EtcdConfig, client: EtcdClient
) -> None:
    """O1, O2."""
    async with serving(etcd_config) as other:
        instances = []
        for _ in range(4):
            instances += [(await one(each, client)).instance for each in (service, other)]
        assert instances == list(range(1, 9))
        for each, another in ((service, other), (other, service)):
            standing = await each.start("t", "friend", {"partitions": 1})
            with pytest.raises(IncompatibleOperation) as caught:
                await another.start("t", "noop", {"partitions": 1})
            assert caught.value.details["operation"] == str(standing)
            beside = await another.start("t", "friendly", {"partitions": 1})
            for operation in (standing, beside):
                await mark(client, operation, "0")
                assert (await each.ended(operation)).state == pb.SUCCEEDED
