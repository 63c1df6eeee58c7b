"""The argument of ``compact``."""

from __future__ import annotations

import re

import msgspec

from distop.operations.arguments import invalid

DEFAULT_MIN_FILES = 5
MAX_SORT_COLUMNS = 16
MIN_FILE_BYTES = 1 << 10
MAX_BYTES = 1 << 42

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class CompactArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to rewrite, and how. Sizes are bytes, or text such as ``64m`` or ``1.5g``."""

    min_files: int = DEFAULT_MIN_FILES
    """A partition with fewer small files is skipped."""
    smaller_than: int | str | None = None
    """Smallest size of a file that is not small. Default: three quarters of ``target_file_size``."""
    target_file_size: int | str | None = None
    """About how large the new files are. Default: the table's ``write.target-file-size-bytes``, or 512m."""
    max_bytes_per_job: int | str | None = None
    """A job reads files of at most this many bytes on disk; a partition with more gets several jobs. Default:
    twice ``target_file_size``."""
    sort_by: list[str] | str = []
    """Columns that sort the rows of a job: names, optionally followed by ``asc`` or ``desc`` and ``nulls
    first`` or ``nulls last``. Default order: ascending, NULL first (descending: last)."""
    filter: str | None = None
    """Only files that may hold rows with this condition, such as ``day < '2024-01-01'``."""

    def __post_init__(self) -> None:
        if self.min_files < 1:
            raise invalid("min_files", "--min-files must be at least 1")


class Sizes(msgspec.Struct, kw_only=True, frozen=True):
    """The sizes of an argument, in bytes."""

    smaller_than: int
    target_file: int
    job: int


def sizes_of(argument: CompactArgument, table_target: int) -> Sizes:
    """The sizes, with defaults filled in.

    Parameters
    ----------
    table_target:
        The table's target file size in bytes.
    """
    given, in_a_job = argument.target_file_size, argument.max_bytes_per_job
    target = table_target if given is None else _bytes("target_file_size", given)
    small = argument.smaller_than
    return Sizes(
        target_file=target,
        smaller_than=target * 3 // 4 if small is None else _bytes("smaller_than", small),
        job=2 * target if in_a_job is None else _bytes("max_bytes_per_job", in_a_job),
    )


def _bytes(field: str, given: int | str) -> int:
    match = _SIZE.fullmatch(str(given).strip())
    if match is None:
        raise invalid(field, f"{given!r} is not a size", "write bytes, or 64m, or 1.5g")
    size = float(match[1]) * 1024 ** _POWERS[match[2].lower()]
    if not MIN_FILE_BYTES <= size <= MAX_BYTES:
        raise invalid(
            field, f"--{field.replace('_', '-')} must lie between {MIN_FILE_BYTES} and {MAX_BYTES} bytes"
        )
    return int(size)
