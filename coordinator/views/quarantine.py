"""Quarantined rows page by page, from the storage of their table."""

from __future__ import annotations

from distop.coordinator.views.listing import DEFAULT_PAGE, MAX_PAGE, PAGE_BYTES, PageToken
from distop.errors import InvalidArgument, PreconditionFailed
from distop.lake.storage.quarantine import Kept, Place, page
from distop.lake.storage.storage import StorageOptions
from distop.proto import distop_pb2 as pb


def quarantined_page(
    request: pb.ListQuarantinedRowsRequest, folder: str, storage: StorageOptions
) -> pb.ListQuarantinedRowsResponse:
    """The page of a request. Blocks.

    Raises
    ------
    PreconditionFailed
        The files cannot be read any more.
    CorruptRecord
    """
    if request.page_size < 0:
        raise InvalidArgument("page_size is negative", details={"field": "page_size"})
    begin = Place()
    if request.page_token:
        # The files do not change: the token has no revision but the one of all tokens.
        token = PageToken.decode(request.page_token)
        begin = Place(token.revision - 1, token.offset)
    size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
    try:
        rows, after, file_format = page(folder, storage, begin, rows=size, most_bytes=PAGE_BYTES // 2)
    except OSError as error:
        raise PreconditionFailed(f"the rows in {folder} cannot be read: {error}") from error
    following = "" if after is None else PageToken(after.file + 1, offset=after.offset).encode()
    shown = [_row(row, file_format) for row in rows]
    return pb.ListQuarantinedRowsResponse(rows=shown, next_page_token=following)


def _row(kept: Kept, file_format: str) -> pb.QuarantinedRow:
    source, *position = kept.position.items()
    numbers = {unit: number for unit, number in position if isinstance(number, int)}
    unit = next(reversed(numbers), "")
    return pb.QuarantinedRow(
        source=str(source[1]),
        unit=unit,
        number=numbers.get(unit, 0),
        partition=numbers.get("partition", 0),
        column=kept.column,
        reason=kept.reason,
        raw=kept.raw,
        base64=kept.exact,
        header=kept.header,
        cut=kept.is_cut,
        format=file_format,
    )
