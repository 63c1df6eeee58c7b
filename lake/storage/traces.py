"""Stack traces of user code that raised, and what jobs printed and logged, stored for diagnosis.

Bounded without counting or cleaning up: a trace has one of a fixed number of slots, and a later one
overwrites an earlier one. It names its operation, so that none is shown as another operation's.
"""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
import zlib
from dataclasses import asdict, dataclass
from threading import Lock
from urllib.parse import quote

from cachetools import FIFOCache

from distop.errors import Crashed, defect_of, encodable, shortened
from distop.lake.storage.storage import StorageOptions, entries, file_system
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg

log = logging.getLogger(__name__)

OPERATIONS = 20
"""Operations of one type (and object) on a table whose traces are kept."""
PLACES = 10
"""Traces stored for one operation, and as many outputs of jobs that succeeded."""
MAX_LETTERS = 16_000
"""Longest trace: its beginning and its end are kept."""
MAX_BYTES = 1 << 20
"""Largest file: JSON may write a byte of UTF-8 with six."""
MOST_WRITTEN = 50
"""Traces of one operation that one process writes, and outputs: many jobs may fail with the same error."""

MAX_OUTPUT_BYTES = 64 << 10
"""Longest output of an attempt, in UTF-8: its end is kept."""

_REMEMBERED = 100
_written: FIFOCache[tuple[str, bool], int] = FIFOCache(_REMEMBERED)
"""Files that this process has written, by the uuid of the operation, and whether they are of failures."""
_counting = Lock()


@dataclass(frozen=True, kw_only=True)
class StoredTrace:
    """What user code raised."""

    operation: str
    uuid: str
    partition: str
    """Partition of the job; empty: completing the operation raised."""
    attempt: str
    at: float
    error: str
    """Empty: the job succeeded."""
    trace: str
    """Empty if the error is none of user code."""
    output: str = ""
    """What the attempt printed and logged: its end."""


def keep_trace(
    arg: OperationArg, error: BaseException, *, partition: str = "", attempt: str = "", output: str = ""
) -> None:
    """Store what an attempt raised, and what it wrote before; errors of distop itself need no trace. Never
    raises."""
    defect = defect_of(error)
    if defect is None and not output:
        return
    text = encodable("".join(traceback.format_exception(error))) if defect is not None else ""
    # A stand-in has the name of the error in its message.
    named = str(error) if isinstance(error, Crashed) else f"{type(error).__name__}: {error}"
    half = MAX_LETTERS // 2
    if len(text) > MAX_LETTERS:
        text = f"{text[:half]}\n...\n{text[-half:]}"
    slot = str(_slot(partition) if partition else PLACES)
    reason = shortened(encodable(named), 1000)
    _keep(arg, slot, partition, attempt, error=reason, trace=text, output=output, at=time.time())


def keep_output(arg: OperationArg, output: str, *, partition: str, attempt: str, at: float) -> None:
    """Store what an attempt that succeeded at this time has written. Never raises."""
    _keep(arg, f"done-{_slot(partition)}", partition, attempt, error="", trace="", output=output, at=at)


def _slot(partition: str) -> int:
    return zlib.crc32(partition.encode(errors="replace")) % PLACES


def _keep(
    arg: OperationArg,
    slot: str,
    partition: str,
    attempt: str,
    *,
    error: str,
    trace: str,
    output: str,
    at: float,
) -> None:
    written = arg.uuid, bool(error)
    if not arg.location:
        return
    with _counting:
        if (before := _written.get(written, 0)) >= MOST_WRITTEN:
            return
        _written[written] = before + 1
    end = encodable(output).encode()[-MAX_OUTPUT_BYTES:].decode(errors="ignore")
    kept = StoredTrace(
        operation=str(arg.id),
        uuid=arg.uuid,
        partition=partition,
        attempt=attempt,
        at=at,
        error=error,
        trace=trace,
        output=end,
    )
    try:
        files, folder = file_system(_folder(arg.location, arg.id), arg.storage)
        files.makedirs(folder, exist_ok=True)
        with files.open(f"{folder}/{slot}.json", "wb") as file:
            file.write(json.dumps(asdict(kept)).encode())
    except Exception as unwritable:  # the original error matters more
        log.warning("trace_not_kept", extra={"operation": str(arg.id), "error": str(unwritable)})


def read_traces(
    location: str, storage: StorageOptions, operation: OperationId, uuid: str
) -> list[StoredTrace]:
    """The stored traces of an operation, the earliest first."""
    folder, traces = _folder(location, operation), []
    slots = (*range(PLACES + 1), *(f"done-{number}" for number in range(PLACES)))
    there = {f"{slot}.json" for slot in slots} & {entry.name for entry in entries(folder, storage)}
    files, path = file_system(folder, storage)
    # From object stores all of them are read at the same time.
    for read in files.cat_ranges([f"{path}/{name}" for name in sorted(there)], 0, MAX_BYTES):
        if isinstance(read, Exception):
            raise read
        try:
            trace = StoredTrace(**json.loads(read))
        except (ValueError, TypeError):  # its process died while writing
            continue
        if trace.uuid == uuid:
            traces.append(trace)
    return sorted(traces, key=lambda trace: trace.at)


def _folder(location: str, operation: OperationId) -> str:
    # Readers of a folder of Parquet files skip names with this prefix.
    of = re.sub(r"[^\w.%-]", "_", quote(f"{operation.type}.{operation.object}".rstrip("."), safe=""))
    return f"{location}/_distop/traces/{of}/{operation.instance % OPERATIONS}"
