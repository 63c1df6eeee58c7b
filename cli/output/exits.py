"""The exit codes of the command line, and how errors are printed."""

from __future__ import annotations

from distop.errors import DistopError, Kind

OPERATION_FAILED = 20
OPERATION_CANCELLED = 21
SOMETHING_WRONG = 22
OPERATION_PARKED = 23
ALREADY_INGESTED = 24
PAUSED = 25
INTERRUPTED = 130

_MEANINGS = {
    0: "done",
    **{kind.exit_code: kind.grpc_status.lower().replace("_", " ") for kind in Kind},
    OPERATION_FAILED: "the operation failed",
    OPERATION_CANCELLED: "the operation was cancelled",
    ALREADY_INGESTED: "the source was ingested already",
    PAUSED: "the table or the operation is paused",
    OPERATION_PARKED: "the operation is parked: it waits for distop operation resolve",
    SOMETHING_WRONG: "cluster doctor or demo or landing or executor --check found a problem",
    INTERRUPTED: "interrupted (Ctrl-C)",
}

EPILOG = "Exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in sorted(_MEANINGS.items())) + "."

_BY_CODE = {
    "OPERATION_FAILED": OPERATION_FAILED,
    "OPERATION_PARKED": OPERATION_PARKED,
    "OPERATION_PAUSED": PAUSED,
    "TABLE_PAUSED": PAUSED,
    "ALREADY_INGESTED": ALREADY_INGESTED,
    "CANCELLED": OPERATION_CANCELLED,
}


def exit_code(error: DistopError) -> int:
    """The exit code for this error."""
    return _BY_CODE.get(error.code, error.kind.exit_code)


class UsageFault(DistopError):
    """The command line is invalid."""

    code = "USAGE"
    kind = Kind.INVALID
