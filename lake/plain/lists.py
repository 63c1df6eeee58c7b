"""Lists of plain Parquet files, for the commit of a ``files`` table, which checks each file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import msgspec
from pyiceberg.io import FileIO

from distop.commit.partial import successful_jobs
from distop.errors import CorruptRecord
from distop.lake.layout.model import file_io
from distop.lake.layout.staging import PRIVATE
from distop.lake.storage.storage import FILES_AT_ONCE
from distop.lake.writing.file_lists import PrivateFileList, WrittenFile
from distop.metastore.records.operation import JobRecord
from distop.metastore.records.structs import convert, from_json
from distop.operations.api import OperationView
from distop.operations.job import staging_folder


class ListedFile(msgspec.Struct, array_like=True, omit_defaults=True):
    """One file of a job."""

    name: str
    """In the operation's folder."""
    size: int
    checksum: str = ""
    """``md5:<hex>``."""
    rows: int = 0
    folder: str = ""
    """Hive's folder of its partition."""


class PlainFileList(PrivateFileList):
    """Files of a ``files`` table."""

    suffix: ClassVar[str] = ".files.json"
    checksums: ClassVar[bool] = True

    def add(self, file: WrittenFile) -> None:
        name, folder = file.path.rpartition("/")[2], self._values.folder(file.key)
        self._files.append(ListedFile(name, file.size, file.checksum, file.footer.num_rows, folder))

    def write(self, io: FileIO, path: str) -> dict[str, Any]:
        content = msgspec.json.encode(self._files)
        with io.new_output(path).create(overwrite=True) as stream:
            stream.write(content)
        return {"manifest": path.rpartition("/")[2], "manifestLength": len(content)}


def written(view: OperationView) -> list[ListedFile]:
    """All files of the successful jobs, in job order. Reads the lists that are stored in files.

    Raises :class:`~distop.errors.CorruptRecord` if one is missing or damaged.
    """
    io = file_io(view.arg.location, view.arg.storage)
    folder = staging_folder(view.arg, PRIVATE)

    def files_of(item: tuple[str, JobRecord]) -> list[ListedFile]:
        partition, job = item
        try:
            return _listed(io, folder, job.result)
        except FileNotFoundError as error:
            raise CorruptRecord(f"the list of files of job {partition} of {view.arg.id} is gone") from error
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
            raise CorruptRecord(
                f"job {partition} of {view.arg.id} reports something that is not a list of files: {error!r}"
            ) from error

    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lists") as pool:
        return [file for listed in pool.map(files_of, successful_jobs(view)) for file in listed]


def _listed(io: FileIO, folder: str, result: dict[str, Any]) -> list[ListedFile]:
    expected = int(result.get("files", 0))
    if not expected and not result.get("rows"):
        return []
    if "listed" in result:
        files = convert(result["listed"], list[ListedFile])
    else:
        with io.new_input(f"{folder}/{result['manifest']}").open() as stream:
            content = stream.read()
        if len(content) != int(result["manifestLength"]):
            raise ValueError(f"it has {len(content)} bytes instead of {result['manifestLength']}")
        files = from_json(content, list[ListedFile])
    if len(files) != expected:
        raise ValueError(f"it lists {len(files)} files instead of {expected}")
    return files
