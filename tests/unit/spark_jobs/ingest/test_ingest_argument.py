"""The argument of ingest, checked without looking at files."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from distop.cli.main import app
from distop.spark_jobs.ingest.argument import IngestArgument, option, parse_argument
from support.refusals import refused


@pytest.mark.parametrize(
    ("field", "argument"),
    [
        ("paths", {}),
        ("paths", {"paths": []}),
        ("paths", {"paths": ["/a", ""]}),
        ("paths", {"paths": ["/a", 3]}),
        ("pathes", {"paths": "/a", "pathes": "/b"}),
        ("format", {"paths": "/a", "format": "xml"}),
        ("header", {"paths": "/a", "header": False}),
        ("header", {"paths": "/a", "header": ["a", "a"]}),
        ("header", {"paths": "/a", "header": "yes"}),
        ("delimiter", {"paths": "/a", "delimiter": "||"}),
        ("delimiter", {"paths": "/a", "delimiter": "\n"}),
        ("quote", {"paths": "/a", "quote": "«"}),
        ("quote", {"paths": "/a", "delimiter": '"'}),
        ("escape", {"paths": "/a", "escape": "ab"}),
        ("encoding", {"paths": "/a", "encoding": "rot13"}),
        ("thousands", {"paths": "/a", "thousands": "."}),
        ("thousands", {"paths": "/a", "thousands": "0"}),
        ("date_format", {"paths": "/a", "date_format": "%Y-%m"}),
        ("date_format", {"paths": "/a", "date_format": "%Y-%m-%d %H"}),
        ("timestamp_format", {"paths": "/a", "timestamp_format": "%Y-%m-%d %H:%S"}),
        ("timestamp_format", {"paths": "/a", "timestamp_format": "%Q"}),
        ("timestamp_format", {"paths": "/a", "timestamp_format": "%d%d%m%Y"}),
        ("timezone", {"paths": "/a", "timezone": "Mars"}),
        ("schema", {"paths": "/a", "schema": {}}),
        ("schema", {"paths": "/a", "schema": {"a": 1}}),
        ("columns", {"paths": "/a", "columns": []}),
        ("columns", {"paths": "/a", "columns": ["a", "b", "a"]}),
        ("filter", {"paths": "/a", "filter": "x" * 5000}),
        ("on_bad_rows", {"paths": "/a", "on_bad_rows": "skip"}),
        ("split_bytes", {"paths": "/a", "split_bytes": 10}),
        ("split_bytes", {"paths": "/a", "split_bytes": 2048.5}),
        ("mode", {"paths": "/a", "mode": "upsert"}),
        ("source", {"paths": "/a", "source": " "}),
        ("watermark", {"paths": "/a", "watermark": {"a": ""}}),
        ("reingest", {"paths": "/a", "reingest": 1}),
    ],
)
def test_a_malformed_argument_is_refused_by_its_field(field: str, argument: dict[str, Any]) -> None:
    """O4."""
    with refused(field):
        parse_argument(argument)


def test_one_name_where_a_list_belongs_is_told_how_to_write_it() -> None:
    """U3: what `--arg columns=id` sends."""
    with refused("columns") as told:
        parse_argument({"paths": ["/a"], "columns": "id"})
    assert 'a list is expected: ["id"]' in told.value.hint
    with refused("columns") as told:
        parse_argument({"paths": ["/a"], "columns": 7})
    assert told.value.hint == ""


def test_messages_write_fields_as_the_command_takes_them() -> None:
    """A14: as an option where there is one, else with --arg."""
    command = get_command(app).get_command(None, "ingest")  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    for field in IngestArgument.__struct_fields__:
        own = "--" + {"keys": "key", "null_values": "null-value"}.get(field, field.replace("_", "-"))
        assert option(field) == (own if own in options else f"--arg {field}")
