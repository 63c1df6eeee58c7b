"""Files that were written before the operation that publishes them started.

The tasks of a write through Spark's own interface know of no operation: Spark decides at the end whether
there will be one. So they write into folders named after the *write*, a name made when it begins. At the end
one list of the valid output is written there, and an operation without jobs publishes that. Its ``uuid`` is
the name of the write, so the folders are those of the operation: code that reports or removes the files of
operations works with them as well.

Before that operation starts, etcd does not know the files. The age in the name identifies them: the search
for orphans skips folders of recent writes, and old writes are not published.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyiceberg.io import FileIO
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from distop.errors import CorruptRecord
from distop.lake.layout.model import file_io
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import from_json
from distop.operations.job import staging_folder

TYPE = "write"
"""The type of operation that publishes them."""
LIST = "prepared"
"""Field of its argument: the name of the list, in the operation's folder for metadata."""

MAX_AGE_S = 3 * 86_400.0
"""A write that began longer ago is not published."""
SPARED_S = MAX_AGE_S + 2 * 3600.0
"""The folders of more recent writes are kept. The difference allows for clock skew."""

_NAME = re.compile(r"w(\d{8}T\d{6})-[0-9a-f]{12}")
_TIME = "%Y%m%dT%H%M%S"


class PreparedTask(msgspec.Struct, frozen=True, kw_only=True):
    """The output of one task."""

    stem: str
    """Prefix of its files' names, as of an attempt at a job."""
    result: dict[str, Any]
    """Result of its :class:`~distop.lake.writing.writer.StagedWriter`."""


# -- names -------------------------------------------------------------------------------------------


def new_write(now: float) -> str:
    """A name for a write that begins now (seconds since the Unix epoch)."""
    began = datetime.fromtimestamp(now, UTC).strftime(_TIME)
    return f"w{began}-{secrets.token_hex(6)}"


def age_of(write: str, now: float) -> float | None:
    """Seconds since a write began; ``None`` if this is not the name of one."""
    matched = _NAME.fullmatch(write)
    if matched is None:
        return None
    began = datetime.strptime(matched[1], _TIME).replace(tzinfo=UTC)
    return now - began.timestamp()


def folder_of(write: str) -> str:
    """The folder of a write, below ``data`` and ``metadata``: the staging folder of its operation."""
    return f"{TYPE}-{write}"


def is_spared(folder: str, now: float) -> bool:
    """Whether a write may still use this folder, although no operation is known for it."""
    prefix, _, write = folder.partition("-")
    age = age_of(write, now) if prefix == TYPE else None
    return age is not None and age < SPARED_S


# -- the list ----------------------------------------------------------------------------------------


# A sweep may remove a folder that an earlier attempt published, between its creation and the file's.
@retry(retry=retry_if_exception_type(FileNotFoundError), stop=stop_after_attempt(5), reraise=True)
def write_list(io: FileIO, path: str, tasks: Sequence[PreparedTask]) -> None:
    """Write the list of the valid tasks. Its name must not have been used before."""
    with io.new_output(path).create(overwrite=True) as stream:
        stream.write(msgspec.json.encode(tasks))


def read_list(arg: OperationArg) -> list[PreparedTask]:
    """The list that an operation publishes; empty if it publishes none.

    Raises :class:`~distop.errors.CorruptRecord` if it is missing or damaged.
    """
    name = arg.argument.get(LIST)
    if not name:
        return []
    path = f"{staging_folder(arg, 'metadata')}/{name}"
    io = file_io(path, arg.storage)
    try:
        with io.new_input(path).open() as stream:
            return from_json(stream.read(), list[PreparedTask])
    except FileNotFoundError as error:
        raise CorruptRecord(f"the list {path} of what {arg.id} publishes is missing") from error
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"{path} is not the list of what {arg.id} publishes: {error}") from error
