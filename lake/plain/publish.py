"""Publishes into a plain directory tree: folders, then renames, then deletions, then ``_SUCCESS``.

A tree has no pointer that moves atomically, so a reader may see some files of an operation before the others.
``_SUCCESS`` shows: the old one is removed first, the new one is written last. The guarantee is the final
state: every file exists once, under a name that no other operation uses, and replaced files are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
from pyiceberg.io import FileIO

from distop.commit.contract import IGNORED, Contribution, FinishContext, StepPlan, TransactionalStep
from distop.errors import CorruptRecord, TableNotEmpty
from distop.lake.layout.evolution import evolution_of, put_on
from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.staging import PRIVATE, in_use, is_owner_file
from distop.lake.plain.steps import (
    DeleteFileArgument,
    FolderArgument,
    RenameArgument,
    SuccessArgument,
    UnmarkArgument,
)
from distop.lake.storage.storage import FILES_AT_ONCE, StorageOptions, file_system, protocol_of
from distop.lake.storage.stored_file import OBJECT_STORES, StoredFile
from distop.lake.writing.file_lists import PrivateFileList, WrittenFile
from distop.metastore.records.operation import JobRecord, OperationArg, StepRecord
from distop.metastore.records.record import convert, decode, from_json
from distop.metastore.records.table import Head
from distop.operations.job import staging_folder


class ListedFile(msgspec.Struct, array_like=True, omit_defaults=True):
    """A file that a job has staged."""

    name: str
    """In the operation's folder."""
    size: int
    checksum: str = ""
    """``md5:<hex>`` of the content."""
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


def written(arg: OperationArg, jobs: Mapping[str, JobRecord]) -> list[ListedFile]:
    """All files of these jobs, in job order. Reads the lists that are stored in files.

    Raises :class:`~distop.errors.CorruptRecord` if one is missing or damaged.
    """
    io = file_io(arg.location, arg.storage)
    folder = staging_folder(arg, PRIVATE)

    def files_of(item: tuple[str, JobRecord]) -> list[ListedFile]:
        partition, job = item
        try:
            return _listed(io, folder, job.result)
        except FileNotFoundError as error:
            raise CorruptRecord(f"the list of files of job {partition} of {arg.id} is gone") from error
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
            raise CorruptRecord(
                f"job {partition} of {arg.id} reports something that is not a list of files: {error!r}"
            ) from error

    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lists") as pool:
        return [file for listed in pool.map(files_of, jobs.items()) for file in listed]


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


MARKER = "_SUCCESS"
FIRST, FOLDERS, RENAMES, DELETIONS, LAST = range(5)
"""The stages of a publication: all steps of one are done before the next begins."""
LOOKERS = 16
"""Files examined concurrently."""

EMPTY_ONLY = ("error_if_exists", "ignore")
"""Modes that require an empty tree."""


class FilesPublish(StepPlan):
    """Moves the output of the jobs to its place. Argument: ``mode``, as of ingest, and
    ``ignored``: the start decided that nothing is to be done."""

    def expand(self, context: FinishContext) -> Sequence[StepRecord]:
        """See :class:`StepPlan`.

        Raises
        ------
        TableNotEmpty
            The mode requires an empty tree, and files have appeared since the operation began.
        CorruptRecord
            A job's list of files is missing or damaged.
        """
        if self.argument.get(IGNORED):
            return []
        arg, mode = context.view.arg, self.argument.get("mode", "append")
        files = written(arg, context.selection.jobs)
        if mode in EMPTY_ONLY and files:
            refuse_files(arg.table, arg.location, arg.storage)
        replaced = _replaced(arg, mode, files)
        if not files and not replaced:
            return []
        root = arg.location.rstrip("/")
        folders = sorted({f"{root}/{file.folder}".rstrip("/") for file in files})
        if protocol_of(root) in OBJECT_STORES:
            folders = []
        staged = staging_folder(arg, PRIVATE)
        marker = f"{root}/{MARKER}"
        marked = StoredFile(marker, arg.storage).existing() is not None
        return [
            *([UnmarkArgument(path=marker).record(FIRST)] if marked else []),
            *(FolderArgument(path=folder).record(FOLDERS) for folder in folders),
            *(_rename(root, staged, arg, file).record(RENAMES) for file in files),
            *(deletion.record(DELETIONS) for deletion in replaced),
            SuccessArgument(path=marker, overwrite=True).record(LAST),
        ]

    def facts(self, context: FinishContext) -> dict[str, Any]:
        return {**context.selection.counted(), **({IGNORED: True} if self.argument.get(IGNORED) else {})}


class FilesHead(TransactionalStep):
    """Records the columns of the table with its first operation; later ones keep them."""

    def prepare(self, context: FinishContext) -> Contribution:
        """Puts the head, with the columns of the table and those that the operation adds."""
        arg = context.view.arg
        layout = arg.argument.get("layout") or {}
        existing = decode(context.head.value, Head, context.head.key) if context.head.exists else None
        if existing is not None and existing.layout:
            # The columns may have been altered meanwhile; the operation's new columns are added on top.
            present, planned = Layout.from_json(existing.layout), Layout.from_json(layout)
            schema = put_on(present.schema, planned.schema, evolution_of(arg))
            layout = replace(present, schema=schema).to_json()
        head = Head(metadata_location="", operation=str(arg.id), layout=layout)
        return Contribution(txn=context.head_moved(head))


def target_name(arg: OperationArg, file: ListedFile) -> str:
    """The name of a file in the tree, unique to this operation and attempt."""
    return f"part-{arg.uuid[:12]}-{file.name}"


def _rename(root: str, staged: str, arg: OperationArg, file: ListedFile) -> RenameArgument:
    folder = f"{root}/{file.folder}".rstrip("/")
    return RenameArgument(
        source=f"{staged}/{file.name}",
        target=f"{folder}/{target_name(arg, file)}",
        size=file.size,
        checksum=file.checksum,
    )


def _replaced(arg: OperationArg, mode: str, files: Iterable[ListedFile]) -> list[DeleteFileArgument]:
    """The files to delete: those that exist now, in their present version (C7, C14).

    Raises :class:`~distop.errors.LocationInUse` if some of them belong to another table.
    """
    if mode not in ("overwrite", "overwrite_partitions"):
        return []
    root = arg.location.rstrip("/")
    names = _files(arg.location, arg.storage)
    if other := next(filter(is_owner_file, names), None):
        raise in_use(root, "has in it", f"{root}/{other}")
    names = list(filter(_is_visible, names))
    written_to = {file.folder for file in files}
    if mode == "overwrite_partitions":
        names = [name for name in names if name.rpartition("/")[0] in written_to]

    def deletion(name: str) -> DeleteFileArgument | None:
        emptied = name.rpartition("/")[0] not in written_to
        return DeleteFileArgument.of(StoredFile(f"{root}/{name}", arg.storage), root if emptied else "")

    with ThreadPoolExecutor(LOOKERS, thread_name_prefix="replaced") as pool:
        return [argument for argument in pool.map(deletion, names) if argument is not None]


def visible_files(location: str, storage: StorageOptions | None = None) -> Iterator[str]:
    """Paths, below a location, of the files visible to readers of the tree: no component begins with ``_``
    or ``.``; sorted."""
    return filter(_is_visible, _files(location, storage))


def _files(location: str, storage: StorageOptions | None) -> list[str]:
    """Paths of all files below a location; sorted. Links to folders are not followed."""
    fs, root = file_system(location, storage)
    root = root.rstrip("/")
    return [name for path in sorted(fs.find(root)) if (name := path[len(root) :].lstrip("/"))]


def _is_visible(name: str) -> bool:
    return not any(part.startswith(("_", ".")) for part in name.split("/"))


def refuse_files(table: str, location: str, storage: StorageOptions | None = None) -> None:
    """Raise :class:`~distop.errors.TableNotEmpty` if the tree contains a visible file."""
    file = next(visible_files(location, storage), None)
    if file is not None:
        raise TableNotEmpty(
            f"table {table!r} already holds data: {file}",
            hint="append to it, or overwrite what is there",
            details={"table": table, "file": file},
        )
