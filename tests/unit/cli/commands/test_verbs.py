"""Each operation type that distop provides is a verb of ``table``, with an option for each field."""

import inspect
from importlib.metadata import entry_points
from typing import Any

import msgspec
import pytest

from distop.client import AsyncTableHandle
from distop.operations import DistributedOperation
from distop.spark_jobs.ingest.argument import IngestArgument
from support.command_lines import leaves

FOR_PROGRAMS = {"noop", "write", "ingest_dataframe"}
"""Types that only tests and Spark programs start."""

OPTIONS = {
    ("ingest", "kafka"): "kafka_topic",
    ("validate", "rules"): "rule",
}
"""Fields whose options have other names, since there are several."""

NO_OPTION = {("ingest", "replay")}
"""What only ``distop quarantine replay`` sends."""

TYPES: dict[str, type[DistributedOperation[Any]]] = {
    entry.name: entry.load()
    for entry in entry_points(group="distop.operations")
    if entry.dist.name == "distop"  # type: ignore[union-attr]
}


def verbs(noun: str = "table") -> dict[str, set[str]]:
    """The verbs of a noun, and the parameters of each."""
    return {
        path[1].replace("-", "_"): {parameter.name for parameter in command.params}
        for path, command in leaves()
        if path[0] == noun
    }


def fields(name: str) -> list[str]:
    """The fields of the argument of a type."""
    kind = IngestArgument if name == "ingest" else TYPES[name].argument_type
    return [field.name for field in msgspec.structs.fields(kind)]


def options(name: str) -> set[str]:
    """The parameters of a command line that stand for the fields of the argument of a type."""
    return {OPTIONS.get((name, field), field) for field in fields(name) if (name, field) not in NO_OPTION}


def test_each_argument_has_one_pair_of_brackets_in_the_usage() -> None:
    names = {
        param.metavar or param.name
        for _, command in leaves()
        for param in command.params
        if param.param_type_name == "argument"
    }
    assert "PATH" in names
    assert not [name for name in names if "[" in name]


def test_each_type_that_people_start_is_a_verb() -> None:
    assert len(TYPES) > len(FOR_PROGRAMS)
    assert TYPES.keys() - FOR_PROGRAMS <= verbs().keys()


@pytest.mark.parametrize("name", sorted(TYPES.keys() - FOR_PROGRAMS))
def test_each_field_of_an_argument_is_an_option(name: str) -> None:
    assert not options(name) - verbs()[name]


@pytest.mark.parametrize("verb", ["add", "replace", "backfill"])
def test_each_field_of_an_ingest_is_an_option_of_what_publishes_a_batch(verb: str) -> None:
    assert not options("ingest") - verbs("batch")[verb]


@pytest.mark.parametrize("name", sorted(TYPES.keys() - FOR_PROGRAMS - {"ingest"}))
def test_each_field_of_an_argument_is_a_keyword_of_the_sdk(name: str) -> None:
    assert not set(fields(name)) - inspect.signature(getattr(AsyncTableHandle, name)).parameters.keys()
