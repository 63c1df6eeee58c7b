"""pyiceberg's file access, restricted to locations that tables may have.

The metadata of a table names files, and any writer of the table can put names there.
"""

from __future__ import annotations

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from distop.lake.storage.allowed import check_location


class ArrowIO(PyArrowFileIO):
    """pyarrow's file access with checks."""

    def new_input(self, location: str) -> PyArrowFile:
        self._check(location)
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        self._check(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._check(location if isinstance(location, str) else location.location)
        super().delete(location)

    def _check(self, location: str) -> None:
        """The path that pyarrow will open: it drops queries, fragments and line breaks of URLs."""
        scheme, host, path = self.parse_location(location, self.properties)
        whole = path if scheme == "file" or path.startswith(host) else f"{host}{path}"
        check_location(whole if scheme == "file" else f"{scheme}://{whole}")


class FsspecIO(FsspecFileIO):
    """fsspec's file access with checks."""

    def new_input(self, location: str):  # type: ignore[no-untyped-def]
        check_location(location)
        return super().new_input(location)

    def new_output(self, location: str):  # type: ignore[no-untyped-def]
        check_location(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        check_location(location if isinstance(location, str) else location.location)
        super().delete(location)


def checked(io: FileIO) -> FileIO:
    """The same file access, with a check of each location; a user-defined one stays as it is."""
    kind = {PyArrowFileIO: ArrowIO, FsspecFileIO: FsspecIO}.get(type(io))
    return io if kind is None else kind(io.properties)
