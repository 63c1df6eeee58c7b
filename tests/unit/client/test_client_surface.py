"""What the SDK has: the blocking classes as the asynchronous ones, and every call of the API."""

import ast
import inspect
from typing import Any

import pytest

from distop import client
from distop.client import (
    AsyncClient,
    AsyncOperationHandle,
    AsyncTableHandle,
    Client,
    IngestOptions,
    OperationHandle,
    StartOptions,
    TableHandle,
    blocking,
)
from distop.proto import distop_pb2 as pb
from distop.spark_jobs.ingest.argument import IngestArgument
from support.repository import ROOT

PAIRS = [(AsyncClient, Client), (AsyncTableHandle, TableHandle), (AsyncOperationHandle, OperationHandle)]


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("awaited", "waiting"), PAIRS)
def test_a_blocking_class_has_the_methods_of_the_asynchronous_one(awaited: type, waiting: type) -> None:
    """U1: with their parameters and their docstrings."""
    methods, blocked = public(awaited), public(waiting)
    methods.pop("of_reply", None)  # what makes a handle of an answer
    assert blocked.keys() == methods.keys()
    for name, method in methods.items():
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            assert callable(blocked[name])
            assert inspect.signature(blocked[name]) == inspect.signature(method)
            assert inspect.getdoc(blocked[name]) == inspect.getdoc(method) or name == "close"


def test_a_call_that_returns_a_handle_returns_a_blocking_one() -> None:
    for awaited, waiting in PAIRS:
        for name, method in public(awaited).items():
            returns = getattr(method, "__annotations__", {}).get("return")
            if returns == "AsyncOperationHandle" and inspect.iscoroutinefunction(method):
                made = getattr(waiting, name).__code__
                assert made.co_qualname == f"{blocking._starting.__name__}.<locals>.start", name


def test_every_call_of_the_api_is_made_by_a_method_of_the_sdk() -> None:
    calls = {method.name for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods}
    assert len(calls) >= 40
    named = set[str]()
    for path in (ROOT / "client").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(value=str(text)) | ast.Attribute(attr=text):
                    named.add(text)
    assert calls <= named


def test_an_ingest_takes_every_field_of_its_argument_as_a_keyword() -> None:
    """But for the rows of a quarantine, which a handle replays."""
    fields = {*IngestArgument.__struct_fields__} - {"paths", "replay"}
    assert IngestOptions.__optional_keys__ - StartOptions.__optional_keys__ == fields


def test_the_page_names_every_method_of_a_table_and_of_the_client() -> None:
    page = (ROOT / "docs" / "sdk.md").read_text()
    for kind in (Client, TableHandle, OperationHandle):
        for name in public(kind).keys() - {"name", "identity", "close", "table", "preview"}:
            assert f"{name}`" in page or f"{name}(" in page or f"`{name}" in page, name


def test_every_exported_name_exists() -> None:
    assert all(hasattr(client, name) for name in client.__all__)


async def test_a_start_with_an_option_that_there_is_not_is_refused() -> None:
    """In place of a start without it, which could not be repeated safely."""
    options: dict[str, Any] = {"run_id": "monday"}
    async with AsyncClient("127.0.0.1:1") as sdk:
        for start in (sdk.start("t", "noop", **options), sdk.table("t").compact(**options)):
            with pytest.raises(TypeError, match="no option run_id"):
                await start
