"""Where an operation writes, by table format.

Files of Iceberg and Delta tables are written at their final place; the commit makes them part of the table. A
plain directory tree consists of its files only, so they are written to a folder that readers ignore (all of
them skip names that begin with ``_``), and moved.
"""

from __future__ import annotations

from distop.metastore.records.operation import OperationArg

ICEBERG, FILES, DELTA = "iceberg", "files", "delta"
FORMATS = (ICEBERG, FILES, DELTA)

OUTPUT = "output"
"""Field of an operation's argument: the format of its table. Default: Iceberg."""

ROWS = "writesRows"
"""Field of an operation's argument: its jobs write rows to the table with ``job.writer()``."""

RULES = "rules"
"""Field of an operation's argument: the rules that its jobs check. Jobs write their findings to the private
folder."""

BRANCH = "branch"
"""Field of the argument of an operation that writes to a branch of its table: the branch's name."""

PRIVATE = "_distop"
"""The folder below a table's location whose files are never part of the table."""

QUARANTINE = "quarantine"
HIDDEN_QUARANTINE = "_quarantine"


def format_of(operation: OperationArg) -> str:
    """The format of the table that an operation writes to."""
    return str(operation.argument.get(OUTPUT, ICEBERG))


def branch_of(operation: OperationArg) -> str:
    """The branch that an operation writes to; empty: the table itself."""
    return str(operation.argument.get(BRANCH) or "")


def data_folder(table_format: str) -> str:
    """The folder that jobs write data files in."""
    return PRIVATE if table_format == FILES else "data"


def kept_folders(table_format: str) -> tuple[str, ...]:
    """Folders in which the files of published attempts stay."""
    match table_format:
        case "files":
            return (HIDDEN_QUARANTINE,)
        case "delta":
            return ("data", HIDDEN_QUARANTINE)
    return ("data", "metadata", QUARANTINE)


def passing_folders(table_format: str) -> tuple[str, ...]:
    """Folders that can be removed once the operation has ended."""
    return () if table_format == ICEBERG else (PRIVATE,)


def passing_folders_of(operation: OperationArg) -> tuple[str, ...]:
    """Folders of an operation that can be removed once it has ended."""
    if operation.argument.get(RULES):
        return (PRIVATE,)
    return passing_folders(format_of(operation))


def quarantine_folder(table_format: str) -> str:
    """The folder for bad rows; readers of the table's own folder skip it."""
    return QUARANTINE if table_format == ICEBERG else HIDDEN_QUARANTINE
