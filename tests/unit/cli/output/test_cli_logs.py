"""Structured logs."""

import io
import json
import logging
import re

from distop.process.logs import LogFormat, configure


def logged(format: LogFormat, *, exc: bool = False) -> str:
    stream = io.StringIO()
    configure("info", format, stream)
    log = logging.getLogger("distop.test")
    log.debug("not_this")
    logging.getLogger("library").info("nor_this")
    try:
        raise ValueError("why\nnot") if exc else LookupError
    except (ValueError, LookupError):
        log.info(
            "operation_started",
            extra={"size": 3, "note": 'a "b"\n', "epoch": 12, "table": "für", "empty": ""},
            exc_info=exc,
        )
    return stream.getvalue()


def test_text_is_one_line_with_the_well_known_fields_first() -> None:
    line = logged("text")
    pattern = (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO operation_started "
        r'table=für epoch=12 size=3 note="a \\"b\\"\\n" empty="" logger=distop\.test\n'
    )
    assert re.fullmatch(pattern, line)


def test_json_is_one_object_a_line() -> None:
    text = logged("json", exc=True)
    assert text.count("\n") == 1
    entry = json.loads(text)
    assert entry["event"] == "operation_started"
    assert (entry["table"], entry["epoch"], entry["size"], entry["note"]) == ("für", 12, 3, 'a "b"\n')
    assert "ValueError: why\nnot" in entry["exception"]


def test_a_traceback_in_text_is_indented() -> None:
    _first, *rest = logged("text", exc=True).splitlines()
    assert rest[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in rest)


def test_a_field_cannot_take_the_place_of_the_event() -> None:
    stream = io.StringIO()
    configure("debug", "json", stream)
    logging.getLogger("distop.test").warning("real", extra={"event": "forged", "level": "x", "obj": object()})
    entry = json.loads(stream.getvalue())
    assert (entry["event"], entry["level"]) == ("real", "warning")
