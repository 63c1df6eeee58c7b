"""One file as a commit step sees it: on a local disk, in an object store, or on any fsspec file system.

Content is identified by size and checksum, never by existence (C5). The checksum is the MD5 of the content: a
job computes it while it writes, and object stores report it as the ETag of objects uploaded in one piece, so
most files there need not be read again to verify them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from distop.errors import PermanentStepError, StepConflict
from distop.lake.storage.storage import S3, StorageOptions, entity_tag, file_system, modified, protocol_of
from distop.metastore.records.operation import OperationArg

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"})
"""Stores where a written file appears atomically, and a rename would be a copy."""

READ_BYTES = 4 << 20

ONE_COPY_BYTES = 5 << 30
"""Largest object that S3 copies in one request."""

DIGESTS = ("md5", "sha256")

_PLAIN_MD5 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Content:
    """The expected content of a file."""

    size: int
    checksum: str
    """``md5:<hex>`` or ``sha256:<hex>`` of the content; ``etag:<etag>`` of an object that was not read."""

    def __str__(self) -> str:
        return f"{self.size:,} bytes with {self.checksum}"


@dataclass(frozen=True)
class ExistingFile:
    """An existing file."""

    size: int
    version: str
    """Changes whenever the file is written: ``etag:...``, or ``mtime:<nanoseconds>``."""
    md5: str = ""
    """Checksum of the content, if the file system reports it."""
    folder: bool = False

    def __str__(self) -> str:
        return "a folder" if self.folder else f"{self.size:,} bytes with {self.version}"


def new_digest(kind: str) -> Any:
    """A hash object for this kind of checksum."""
    if kind not in DIGESTS:
        raise PermanentStepError(f"unknown kind of checksum {kind!r}; known: {', '.join(DIGESTS)}, etag")
    return hashlib.new(kind, usedforsecurity=False)


class Md5Writer:
    """A binary stream that computes the MD5 of what is written to another one."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._size = 0

    def write(self, data: Any) -> int:
        self._md5.update(data)
        self._size += memoryview(data).nbytes
        return self._stream.write(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    @property
    def content(self) -> Content:
        """The content written so far."""
        return Content(self._size, f"md5:{self._md5.hexdigest()}")


class StoredFile:
    """Where a file is, or will be.

    Parameters
    ----------
    url:
        An absolute path, or a URL that fsspec knows; taken literally.
    storage:
        Options of the file system.
    """

    def __init__(self, url: str, storage: StorageOptions | None = None) -> None:
        self.url = url
        self.fs, self.path = file_system(url, storage)
        self.is_local = protocol_of(url) == "file"
        self.is_object_store = protocol_of(url) in OBJECT_STORES
        self._is_s3 = protocol_of(url) in S3 and hasattr(self.fs, "call_s3")

    def _head(self) -> dict[str, Any]:
        # One request. fsspec's own look also lists what is below a name that is no object.
        bucket, key, _ = self.fs.split_path(self.path)
        head = self.fs.call_s3("head_object", Bucket=bucket, Key=key)
        return {"type": "file", "size": head["ContentLength"], "ETag": head["ETag"]}

    @classmethod
    def of(cls, url: str, arg: OperationArg) -> StoredFile:
        """A file of an operation. The storage options are those of its table's file system; other file
        systems are reached with the environment's settings."""
        same = protocol_of(url) == protocol_of(arg.location)
        return cls(url, arg.storage if same else None)

    @property
    def folder(self) -> str:
        """The path of the folder it is in."""
        return self.path.rpartition("/")[0]

    def existing(self) -> ExistingFile | None:
        """The file that exists now."""
        if self.is_local:
            return _existing_locally(self.path)
        try:
            info = self._head() if self._is_s3 else self.fs.info(self.path)
        except FileNotFoundError:
            return None
        if info["type"] == "directory":
            # In an object store only the names of other objects make it look like a folder.
            return None if self.is_object_store else ExistingFile(0, "", folder=True)
        if tag := entity_tag(info):
            return _object(int(info["size"]), tag)
        at = modified(info)
        return ExistingFile(int(info["size"]), f"mtime:{at.timestamp() if at else None}")

    def copy_to(self, target: StoredFile, size: int) -> ExistingFile | None:
        """Have the object store, which holds both, copy a file of this size; return the new file."""
        if not (self._is_s3 and size <= ONE_COPY_BYTES):
            self.fs.cp_file(self.path, target.path)
            return target.existing()
        # One request, whose answer replaces a look; fsspec's own copy looks at the source before.
        bucket, key, _ = self.fs.split_path(self.path)
        to_bucket, to_key, _ = target.fs.split_path(target.path)
        source = {"Bucket": bucket, "Key": key}
        made = self.fs.call_s3("copy_object", Bucket=to_bucket, Key=to_key, CopySource=source)
        return _object(size, made["CopyObjectResult"]["ETag"])

    def holds(self, content: Content, existing: ExistingFile | None) -> bool:
        """Whether the file has this content; reads the file if nothing else proves it."""
        if existing is None or existing.folder or existing.size != content.size:
            return False
        kind, _, value = content.checksum.partition(":")
        if kind == "etag":
            return existing.version == content.checksum
        # A different ETag proves nothing: with some encryptions, and for multipart uploads, it is no MD5.
        return (kind == "md5" and existing.md5 == value) or self.digest(kind) == value

    def digest(self, kind: str = "md5") -> str:
        """The checksum of its content, by reading all of it; empty if the file is gone.

        Raises :class:`~distop.errors.PermanentStepError` for an unknown kind.
        """
        digest = new_digest(kind)
        try:
            with self.open_to_read() as stream:
                while block := stream.read(READ_BYTES):
                    digest.update(block)
        except FileNotFoundError:
            return ""
        return str(digest.hexdigest())

    def open_to_read(self) -> Any:
        return open(self.path, "rb") if self.is_local else self.fs.open(self.path, "rb", cache_type="none")

    def remove(self) -> None:
        """Remove it, if it exists."""
        with suppress(FileNotFoundError):
            if self.is_local:
                os.unlink(self.path)
            else:
                self.fs.rm_file(self.path)

    def check_planned(self, planned: ExistingFile) -> ExistingFile | None:
        """The existing file, if it is the planned one.

        Raises :class:`~distop.errors.StepConflict` naming both if it is something else (C14).
        """
        existing = self.existing()
        if existing is None or (existing.size, existing.version, existing.folder) == (
            planned.size,
            planned.version,
            False,
        ):
            return existing
        raise StepConflict(
            f"{self.url} has changed since its deletion was planned: it was {planned}, and is {existing}",
            details={"path": self.url, "planned": str(planned), "found": str(existing)},
        )


def _existing_locally(path: str) -> ExistingFile | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return ExistingFile(status.st_size, f"mtime:{status.st_mtime_ns}", folder=stat.S_ISDIR(status.st_mode))


def _object(size: int, tag: str) -> ExistingFile:
    tag = tag.strip('"')
    return ExistingFile(size, f"etag:{tag}", tag if _PLAIN_MD5.fullmatch(tag) else "")
