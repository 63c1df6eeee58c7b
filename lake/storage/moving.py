"""Moves files so that readers never see a part of one at its new place.

Within a local disk: a link and an unlink, or one atomic rename. Within an object store: a copy by the server.
Between file systems: a copy under a private name that is verified and then renamed, or an upload that is
completed only after it was verified. The source is removed last: a crash leaves the source or the target
whole.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fsspec import AbstractFileSystem

from distop.errors import StepConflict, Unavailable
from distop.lake.storage.stored_file import OBJECT_STORES, READ_BYTES, Content, StoredFile, new_digest
from distop.metastore.crashpoints import reached

ONE_PIECE_BYTES = 16 << 20
"""Files up to this size are uploaded in one piece: their ETag is then the MD5 of their content."""

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


class Mover:
    """Moves files for one operation.

    Parameters
    ----------
    owner:
        Uuid of the operation: names the folders of its unfinished copies, which no other operation uses
        (C19).
    check:
        Called right before something becomes visible or is removed.
    """

    def __init__(self, owner: str, check: Callable[[], None]) -> None:
        self._owner = owner
        self._check = check

    def move(self, source: StoredFile, target: StoredFile, content: Content, *, overwrite: bool) -> None:
        """Move a file seen at ``source``; an existing ``target`` is replaced only with ``overwrite``.

        Raises
        ------
        StepConflict
            The content read is not ``content``: the target is unchanged.
        FileExistsError
            A new file exists at the target and must not be overwritten.
        """
        if source.is_local and target.is_local:
            try:
                self._move_locally(source.path, target.path, overwrite)
                return
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
        if source.fs is target.fs and not target.is_local and _renames(target.fs):
            self._rename_remotely(source, target, overwrite)
            return
        if source.fs is target.fs and target.is_object_store:
            self._copy_by_server(source, target, content)
        elif target.is_local:
            self._copy_to_disk(source, target, content, overwrite)
        elif target.is_object_store:
            self._upload(source, target, content)
        else:
            self._copy_and_rename(source, target, content, overwrite)
        self._check()
        source.remove()

    def write(self, target: StoredFile, data: bytes, *, overwrite: bool) -> None:
        """Write a small file atomically. Raises ``FileExistsError`` as :meth:`move`."""
        self._check()
        if target.is_local:
            with self._aside(target.path) as (path, finish):
                with open(path, "xb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                finish(overwrite)
        elif target.is_object_store:
            target.fs.pipe_file(target.path, data)
        else:
            aside = self._remote_name(target)
            target.fs.makedirs(target.folder, exist_ok=True)
            target.fs.pipe_file(aside, data)
            self._rename(target, aside, overwrite)

    def clean(self, target: StoredFile) -> None:
        """Remove the remains of an interrupted copy to ``target``."""
        if target.is_local:
            self._clean_locally(target.path)
        elif not target.is_object_store:
            with suppress(FileNotFoundError):
                target.fs.rm_file(self._remote_name(target))

    # -- local disk ------------------------------------------------------------------------------------

    def _move_locally(self, source: str, target: str, overwrite: bool) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        self._check()
        if overwrite:
            os.replace(source, target)
            reached("step.rename.middle")
        else:
            _link(source, target)
            reached("step.rename.middle")
            with suppress(FileNotFoundError):
                os.unlink(source)

    def _copy_to_disk(
        self, source: StoredFile, target: StoredFile, content: Content, overwrite: bool
    ) -> None:
        with self._aside(target.path) as (path, finish):
            with open(path, "xb") as stream:
                _copy(source, stream, content)
                stream.flush()
                os.fsync(stream.fileno())
            reached("step.rename.middle")
            finish(overwrite)

    @contextmanager
    def _aside(self, target: str) -> Iterator[tuple[str, Callable[[bool], None]]]:
        """A private path on the disk of ``target``, and the function that renames it to ``target``.

        Each attempt has a path of its own and removes those of earlier attempts: a stale attempt cannot
        rename a file that another has only half written.
        """
        folder = self._clean_locally(target)
        path = os.path.join(folder, f"{_stem(target)}-{secrets.token_hex(6)}")

        def finish(overwrite: bool) -> None:
            self._check()
            if overwrite:
                os.replace(path, target)
            else:
                _link(path, target)

        os.makedirs(folder, exist_ok=True)
        try:
            yield path, finish
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)
            # Refused, correctly, while another step copies into it.
            with suppress(OSError):
                os.rmdir(folder)

    def _clean_locally(self, target: str) -> str:
        folder = os.path.join(os.path.dirname(target), f".distop-{self._owner}")
        with suppress(FileNotFoundError):
            for name in os.listdir(folder):
                if name.startswith(f"{_stem(target)}-"):
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, name))
            with suppress(OSError):
                os.rmdir(folder)
        return folder

    # -- object stores ---------------------------------------------------------------------------------

    def _copy_by_server(self, source: StoredFile, target: StoredFile, content: Content) -> None:
        self._check()
        if not target.holds(content, source.copy_to(target, content.size)):
            raise Unavailable(f"{target.url} is not what was copied from {source.url}")
        reached("step.rename.middle")

    def _upload(self, source: StoredFile, target: StoredFile, content: Content) -> None:
        if content.size <= ONE_PIECE_BYTES:
            piece = io.BytesIO()
            _copy(source, piece, content)
            self._check()
            target.fs.pipe_file(target.path, piece.getvalue())
        else:
            self._upload_in_parts(source, target, content)
        if not target.holds(content, target.existing()):
            raise Unavailable(f"{target.url} is not what was copied from {source.url}")
        reached("step.rename.middle")

    def _upload_in_parts(self, source: StoredFile, target: StoredFile, content: Content) -> None:
        stream: Any = target.fs.open(target.path, "wb", autocommit=False)
        try:
            _copy(source, stream, content)
            stream.close()
            self._check()
            stream.commit()
        except BaseException:
            # Closing it, as its finalizer would, might complete the upload with the part read so far.
            with suppress(Exception):
                stream.discard()
            with suppress(AttributeError):
                stream.closed = True
            raise

    # -- other file systems ----------------------------------------------------------------------------

    def _rename_remotely(self, source: StoredFile, target: StoredFile, overwrite: bool) -> None:
        target.fs.makedirs(target.folder, exist_ok=True)
        self._check()
        self._rename(target, source.path, overwrite)
        reached("step.rename.middle")

    def _copy_and_rename(
        self, source: StoredFile, target: StoredFile, content: Content, overwrite: bool
    ) -> None:
        aside = self._remote_name(target)
        target.fs.makedirs(target.folder, exist_ok=True)
        try:
            with target.fs.open(aside, "wb") as stream:
                _copy(source, stream, content)
            reached("step.rename.middle")
            self._check()
            self._rename(target, aside, overwrite)
        except BaseException:
            with suppress(Exception):
                target.fs.rm_file(aside)
            raise

    def _rename(self, target: StoredFile, path: str, overwrite: bool) -> None:
        if overwrite:
            # Some of them do not replace an existing file. Never without: it may be the very file, which a
            # faster process has moved.
            target.remove()
        target.fs.mv(path, target.path)

    def _remote_name(self, target: StoredFile) -> str:
        return f"{target.folder}/.distop-{self._owner}-{_stem(target.path)}"


def _copy(source: StoredFile, stream: Any, content: Content) -> None:
    """Copy a file into a stream, which stays open.

    Raises :class:`~distop.errors.StepConflict` if the content read is not ``content``.
    """
    kind, _, _ = content.checksum.partition(":")
    digest, size = new_digest("md5" if kind == "etag" else kind), 0
    with source.open_to_read() as reading:
        # One byte more than expected detects a longer file, however long it is.
        while block := reading.read(min(READ_BYTES, content.size + 1 - size)):
            digest.update(block)
            stream.write(block)
            size += len(block)
    checksum = f"{kind}:{digest.hexdigest()}"
    if size != content.size or (kind != "etag" and checksum != content.checksum):
        raise StepConflict(
            f"{source.url} is not the file to publish: expected {content}, "
            f"found {size:,} bytes with {checksum}",
            details={"path": source.url, "planned": str(content), "found": checksum},
        )


def _link(source: str, target: str) -> None:
    """Give a file a second name, unless the name is taken (``FileExistsError``)."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without links: another process may take the name between the look and the rename.
        if os.path.lexists(target):
            raise FileExistsError(target) from None
        os.rename(source, target)


def _stem(target: str) -> str:
    """A short name for a target within its folder, safe for any target name."""
    return hashlib.sha256(os.path.basename(target).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _renames(fs: Any) -> bool:
    """Whether a file system has a real rename, instead of copying and removing."""
    return type(fs).mv is not AbstractFileSystem.mv and not set(_protocols(fs)) & OBJECT_STORES


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
