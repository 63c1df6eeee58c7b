"""The argument of ingest, checked without looking at files."""

from typing import Any

import pytest
from typer.main import get_command

from distop.cli.main import app
from distop.sources.kafka.ranges import KafkaArgument
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


def test_a_single_name_in_place_of_a_list_is_refused_with_the_list_to_write() -> None:
    """U3"""
    with refused("columns") as told:
        parse_argument({"paths": ["/a"], "columns": "id"})
    assert 'a list is expected: ["id"]' in told.value.hint
    with refused("columns") as told:
        parse_argument({"paths": ["/a"], "columns": 7})
    assert told.value.hint == ""


def test_every_field_has_an_option_and_messages_name_it() -> None:
    """A14: so no ingest needs JSON. Rows in quarantine have a command of their own, and paths are words."""
    command = get_command(app).commands["table"].commands["ingest"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    of_a_topic = [f"kafka.{name}" for name in KafkaArgument.__struct_encode_fields__]
    for field in (*IngestArgument.__struct_fields__, *of_a_topic):
        assert option(field) in options or field in ("paths", "replay"), field
