"""What a new table is given is checked when it is made, and named by its field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from distop.errors import InvalidArgument, TableNotFound
from distop.metastore.etcd.config import EtcdConfig
from distop.proto import distop_pb2 as pb
from support.services.coordinators import Service, raising, serving


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig) -> AsyncIterator[Service]:
    async with serving(etcd_config) as standing:
        yield standing


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("iceberg", {"schema": "id: long"}, "schema", "neither a list"),
    ("iceberg", {"schema": 5}, "schema", "neither a list"),
    ("iceberg", {"schema": ["id long"]}, "schema", "is not a column"),
    ("iceberg", {"schema": [{"name": "id"}]}, "schema", "neither a list"),
    ("iceberg", {"schema": {"id": 5}}, "schema", "neither a list"),
    ("iceberg", {"schema": []}, "schema", "no columns"),
    ("iceberg", {"schema": ["id: lnog"]}, "schema", "unknown type 'lnog'"),
    ("iceberg", {"schema": ["id: long", "id: int"]}, "schema", "named twice"),
    ("iceberg", {"schema": ["i\x1bd: long"]}, "schema", r"U\+001B"),
    ("iceberg", {"partitionBy": "id"}, "partitionBy", "not a list"),
    ("iceberg", {"partitionBy": ["moth(at)"]}, "partitionBy", "no transform 'moth'"),
    ("iceberg", {"schema": ["id: long"], "partitionBy": ["at"]}, "partitionBy", "neither a column"),
    ("iceberg", {"schema": ["id: long"], "partitionBy": ["day(id)"]}, "partitionBy", "cannot be taken"),
    ("iceberg", {"properties": ["a"]}, "properties", "no.* object"),
    ("iceberg", {"properties": {"a": {"b": 1}}}, "properties", "neither text"),
    ("iceberg", {"properties": {"py-io-impl": "subprocess.Popen"}}, "properties", "names code"),
    ("iceberg", {"properties": {"write.data.path": "s3://other/place"}}, "properties", "own folder"),
    ("iceberg", {"checks": []}, "checks", "not a JSON object"),
    ("iceberg", {"checks": {"rulez": ["id > 0"]}}, "checks", "rulez"),
    ("iceberg", {"schema": ["id: long"], "checks": {"rules": ["ix > 0"]}}, "checks", "no column 'ix'"),
    ("iceberg", {"schema": ["id: long"], "checks": {"rules": ["id >"]}}, "checks", "rules"),
    ("iceberg", {"storage": "s3"}, "storage", "not a JSON object"),
    ("iceberg", {"shcema": []}, "shcema", "unknown option"),
    ("files", {"schema": ["id: long"], "partitionBy": ["id"]}, "partitionBy", "all columns"),
    ("delta", {"schema": ["at: date"], "partitionBy": ["day(at)"]}, "partitionBy", "columns alone"),
    ("delta", {"schema": ["at: time"]}, "schema", "no type time"),
]


async def test_what_could_never_work_is_refused_by_field(service: Service) -> None:
    """U3: and there is no such table."""
    for table_format, options, option, says in REFUSED:
        with pytest.raises(InvalidArgument, match=says) as caught:
            await service.create_table("t", format=table_format, options_json=json.dumps(options))
        assert caught.value.details["field"] == f"options.{option}", options
        with pytest.raises(TableNotFound), raising():
            await service.tables.GetTable(pb.GetTableRequest(name="t"), timeout=10)


async def test_what_can_work_is_taken(service: Service) -> None:
    options = {
        "schema": {"id": "long not null", "at": "timestamp"},
        "partitionBy": ["day(at)", "bucket[4](id)"],
        "properties": {"write.parquet.row-group-limit": 1000, "commit.manifest-merge.enabled": True},
        "checks": {"rules": ["id > 0", {"not_null": "at"}]},
        "storage": {"endpoint_url": "http://127.0.0.1:9000", "config_kwargs": {"retries": {}}},
    }
    table = await service.create_table("t", options_json=json.dumps(options))
    columns = ["id: long not null", "at: timestamp"]  # in the order in which they were written
    assert json.loads(table.options_json) == options | {"schema": columns}


async def test_a_name_that_reads_as_another_is_refused(service: Service) -> None:
    """U3: and the field is named."""
    for name in (".", "..", " ", "a\0b", "a\x1bb", "a\u202eb", "Zu\u0308rich"):
        with pytest.raises(InvalidArgument) as caught:
            await service.create_table(name)
        assert (caught.value.code, caught.value.details["field"]) == ("INVALID_NAME", "name"), repr(name)
