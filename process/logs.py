"""Structured logs: one event per line, with its fields.

As text, for people: ``2026-01-31T12:00:05.123Z INFO operation_started table=flights epoch=12``.
As JSON, for machines: one object per line with the same fields.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any, Literal, TextIO

Level = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

trace_id: ContextVar[str] = ContextVar("trace_id", default="")
"""The trace that this task works for, as hexadecimal digits: a field of what it logs. Empty: none."""

_FIRST = ("table", "operation", "partition", "epoch")
"""Fields that come first."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: Level = "info", format: LogFormat = "text", stream: TextIO | None = None) -> None:
    """Log to ``stream`` (default: stderr) from now on. ``level`` applies to distop; libraries log
    warnings."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("distop").setLevel(level.upper())
    logging.captureWarnings(True)
    # No format uses the line of code, the thread or the process: do not look them up.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def event_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that were passed as ``extra``."""
    given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    first = {name: given.pop(name) for name in _FIRST if name in given}
    return first | ({"trace_id": trace} if (trace := trace_id.get()) else {}) | given


class TextFormatter(logging.Formatter):
    """Formats a log for people. A traceback follows on indented lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname, _one_line(record.getMessage())]
        parts += [f"{name}={_quoted(value)}" for name, value in event_fields(record).items()]
        parts.append(f"logger={record.name}")
        line = " ".join(parts)
        if record.exc_info:
            line += "\n    " + self.formatException(record.exc_info).replace("\n", "\n    ")
        return line


class JsonFormatter(logging.Formatter):
    """Formats a log for machines: each entry is one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        # A field cannot overwrite the standard fields of a line.
        entry |= {name: value for name, value in event_fields(record).items() if name not in entry}
        entry["logger"] = record.name
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _time(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.created % 1 * 1000):03d}Z"


@functools.lru_cache(maxsize=4)
def _second(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


def _quoted(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    plain = text.isprintable() and not any(letter in text for letter in ' "=')
    return text if text and plain else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)[1:-1]
