"""A file system that counts what is opened to be read."""

from __future__ import annotations

from collections import Counter

from pyiceberg.io import InputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

opened: Counter[str] = Counter()
"""Files that were opened: ``data`` and ``index``, by the folder of the table that they lie in."""


class _CountedFile(PyArrowFile):
    def open(self, seekable: bool = True) -> InputStream:
        for folder in ("data", "index"):
            if f"/{folder}/" in self.location:
                opened[folder] += 1
        return super().open(seekable)


class CountingIO(PyArrowFileIO):
    """The file system of a snapshot whose opened files are counted in :data:`opened`."""

    def new_input(self, location: str) -> PyArrowFile:
        plain = super().new_input(location)
        return _CountedFile(
            location=plain.location, path=plain._path, fs=plain._filesystem, buffer_size=plain._buffer_size
        )
