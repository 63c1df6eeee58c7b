"""Commit steps on files: rename, delete, make a folder, remove a marker, write a marker.

Each checks sizes and checksums before it acts, and can be repeated after any part of it. Names are literal,
whatever characters they contain (C12).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import ClassVar

from distop.commit.contract import ExternalStep, StepArgument, StepContext, StepState, argument_of
from distop.errors import PermanentStepError, StepConflict, StepSourceMissing
from distop.lake.storage.moving import Mover
from distop.lake.storage.stored_file import Content, ExistingFile, StoredFile
from distop.metastore.crashpoints import reached

MAX_MARKER_BYTES = 4096
"""Much more than the size of a token."""


class RenameArgument(StepArgument):
    """The argument of a :class:`Rename`."""

    STEP: ClassVar[str] = "files.rename"

    source: str
    """URL of a file of this operation; the step removes it."""
    target: str
    """URL of the target; may be on another file system."""
    size: int
    checksum: str
    """``md5:<hex>`` of the content, or ``etag:<etag>``."""
    overwrite: bool = False
    """Whether a file with other content at the target is replaced; otherwise it is a conflict."""


class DeleteFileArgument(StepArgument):
    """The argument of a :class:`DeleteFile`."""

    STEP: ClassVar[str] = "files.delete"

    path: str
    """URL of the file."""
    size: int
    version: str
    """``etag:...`` or ``mtime:...``, as :meth:`of` found it."""
    root: str = ""
    """URL of a folder on a local disk: folders below it that the deletion leaves empty are removed, too."""

    @classmethod
    def of(cls, target: StoredFile, root: str = "") -> DeleteFileArgument | None:
        """The present file; ``None`` if there is none."""
        existing = target.existing()
        if existing is None or existing.folder:
            return None
        return cls(path=target.url, size=existing.size, version=existing.version, root=root)


class FolderArgument(StepArgument):
    """The argument of a :class:`MakeFolder`."""

    STEP: ClassVar[str] = "files.mkdir"

    path: str
    mode: str = ""
    """Permissions in octal digits, such as ``0750``; empty: the system's default."""


class SuccessArgument(StepArgument):
    """The argument of a :class:`SuccessMarker`."""

    STEP: ClassVar[str] = "files.success"

    path: str
    """URL of the marker, its name included."""
    overwrite: bool = False
    """Whether the marker of another operation is replaced; otherwise it is a conflict."""


class UnmarkArgument(StepArgument):
    """The argument of an :class:`Unmark`."""

    STEP: ClassVar[str] = "files.unmark"

    path: str
    """URL of the marker, its name included."""


class Rename(ExternalStep):
    """Moves a file to its final place, by a copy where rename is impossible."""

    looks_itself: ClassVar[bool] = True

    _looked: tuple[ExistingFile | None] | None = None

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`.

        Raises
        ------
        StepConflict
            Another file exists at the target, and the step may not replace it (C5).
        """
        argument, source, target, content = self._parts(context)
        existing = target.existing()
        self._looked = (existing,)
        if target.holds(content, existing):
            return StepState.NOT_DONE if source.existing() is not None else StepState.DONE
        if existing is not None and not (argument.overwrite and not existing.folder):
            raise _in_the_way(target, existing, content)
        return StepState.NOT_DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`.

        Raises
        ------
        StepSourceMissing
            The source is gone and the target is not the expected file (C6).
        StepConflict
            The source is not the planned file; or as :meth:`verify`.
        """
        argument, source, target, content = self._parts(context)
        mover = Mover(context.arg.uuid, context.check)
        mover.clean(target)
        reached("step.rename.before")
        # The result of verify() a moment ago is reused: on object stores each look costs a request.
        looked, self._looked = self._looked, None
        existing = looked[0] if looked else target.existing()
        origin = source.existing()
        if target.holds(content, existing):
            # An earlier execution got this far.
            context.check()
            source.remove()
        elif origin is None:
            raise StepSourceMissing(
                f"{source.url} is gone, and {target.url} is {existing or 'missing'} instead of {content}",
                details={"source": source.url, "target": target.url},
            )
        elif origin.size != content.size or (source.is_object_store and not source.holds(content, origin)):
            # On a disk comparing the size is enough: reading all files again would cost as much as writing
            # them.
            raise StepConflict(
                f"{source.url} is not the file to publish: expected {content}, found {origin}",
                details={"path": source.url, "planned": str(content), "found": str(origin)},
            )
        elif existing is not None and not (argument.overwrite and not existing.folder):
            raise _in_the_way(target, existing, content)
        else:
            mover.move(source, target, content, overwrite=argument.overwrite)
        reached("step.rename.after")

    def undo(self, context: StepContext) -> bool:
        """Move the file back. If it replaced a file, that one is lost, and nothing is undone."""
        argument, source, target, content = self._parts(context)
        mover = Mover(context.arg.uuid, context.check)
        mover.clean(target)
        if not target.holds(content, target.existing()):
            return True
        if argument.overwrite:
            return False
        context.check()
        if source.existing() is None:
            mover.move(target, source, content, overwrite=True)
        else:
            target.remove()
        return True

    def _parts(self, context: StepContext) -> tuple[RenameArgument, StoredFile, StoredFile, Content]:
        argument = argument_of(self, RenameArgument)
        source, target = (
            StoredFile.of(argument.source, context.arg),
            StoredFile.of(argument.target, context.arg),
        )
        if source.fs is target.fs and source.path == target.path:
            raise PermanentStepError(f"{source.url} cannot be moved to itself")
        return argument, source, target, Content(argument.size, argument.checksum)


class DeleteFile(ExternalStep):
    """Deletes a file, if it is still the planned one (C14)."""

    skippable: ClassVar[bool] = True

    _tidied = False

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`. Raises :class:`~distop.errors.StepConflict` if the file has changed."""
        target, planned, folders = self._parts(context)
        if target.check_planned(planned) is not None:
            return StepState.NOT_DONE
        # An earlier execution may have ended in between. What cannot be removed stays, after one attempt.
        lowest = next(filter(os.path.isdir, folders), None)
        left = not self._tidied and lowest is not None and _is_empty(lowest)
        return StepState.NOT_DONE if left else StepState.DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`. Raises as :meth:`verify`."""
        target, planned, folders = self._parts(context)
        reached("step.delete.before")
        # After the check, to keep the time between look and deletion short.
        context.check()
        if target.check_planned(planned) is not None:
            target.remove()
        for folder in folders:
            with suppress(OSError):  # it has files, or another deletion has removed it
                os.rmdir(folder)
        self._tidied = True
        reached("step.delete.after")

    def undo(self, context: StepContext) -> bool:
        """A deleted file cannot be restored."""
        target, _, _ = self._parts(context)
        return target.existing() is not None

    def _parts(self, context: StepContext) -> tuple[StoredFile, ExistingFile, list[str]]:
        """The file, what it must be, and the folders to remove once they are empty, the lowest first."""
        argument = argument_of(self, DeleteFileArgument)
        target = StoredFile.of(argument.path, context.arg)
        folders: list[str] = []
        if argument.root and target.is_local:
            root, folder = StoredFile.of(argument.root, context.arg).path.rstrip("/"), target.folder
            while folder.startswith(f"{root}/"):
                folders.append(folder)
                folder = os.path.dirname(folder)
        return target, ExistingFile(argument.size, argument.version), folders


class MakeFolder(ExternalStep):
    """Makes a folder, and its parents, with the given permissions. Object stores have no folders."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`. Raises :class:`~distop.errors.StepConflict` if it is a file."""
        argument, folder = self._parts(context)
        if folder.is_object_store:
            return StepState.DONE
        existing = folder.existing()
        if existing is None:
            return StepState.NOT_DONE
        if not existing.folder:
            raise StepConflict(f"{folder.url} must be a folder, but is a file", details={"path": folder.url})
        if (
            argument.mode
            and folder.is_local
            and os.stat(folder.path).st_mode & 0o7777 != _octal(argument.mode)
        ):
            return StepState.NOT_DONE
        return StepState.DONE

    def execute(self, context: StepContext) -> None:
        """Makes the folder with those above it, and sets its permissions."""
        argument, folder = self._parts(context)
        if folder.is_object_store:
            return
        reached("step.mkdir.before")
        if folder.is_local:
            os.makedirs(folder.path, exist_ok=True)
            if argument.mode:
                os.chmod(folder.path, _octal(argument.mode))
        else:
            folder.fs.makedirs(folder.path, exist_ok=True)
        reached("step.mkdir.after")

    def undo(self, context: StepContext) -> bool:
        """Remove it if it is empty; folders above it stay.

        One that holds files is in use by others: nothing of this step is left but its permissions.
        """
        argument, folder = self._parts(context)
        if folder.is_local:
            with suppress(OSError):
                os.rmdir(folder.path)
        return folder.is_object_store or not argument.mode or folder.existing() is None

    def _parts(self, context: StepContext) -> tuple[FolderArgument, StoredFile]:
        argument = argument_of(self, FolderArgument)
        return argument, StoredFile.of(argument.path, context.arg)


class Unmark(ExternalStep):
    """Removes ``_SUCCESS`` of an earlier operation: the files that it confirms are about to change."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`. The operation's own marker proves that it is beyond this step."""
        exists = _text_of(self._marker(context)) not in (None, context.token)
        return StepState.NOT_DONE if exists else StepState.DONE

    def execute(self, context: StepContext) -> None:
        """Removes the marker unless it is the operation's own."""
        reached("step.unmark.before")
        context.check()
        if self.verify(context) is StepState.NOT_DONE:
            self._marker(context).remove()
        reached("step.unmark.after")

    def undo(self, context: StepContext) -> bool:
        """A removed marker is not restored: the files may differ from those that it confirmed. Nothing of
        this operation is left by that."""
        return True

    def _marker(self, context: StepContext) -> StoredFile:
        return StoredFile.of(argument_of(self, UnmarkArgument).path, context.arg)


class SuccessMarker(ExternalStep):
    """Writes ``_SUCCESS`` with the operation's token, by which the operation recognises its own marker."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`.

        Raises :class:`~distop.errors.StepConflict` if the marker of another operation exists and may not be
        replaced.
        """
        argument, marker = self._parts(context)
        text = _text_of(marker)
        if text == context.token:
            return StepState.DONE
        if text is not None and not argument.overwrite:
            raise StepConflict(
                f"{marker.url} belongs to {text[:200]!r}, not to {context.token!r}",
                details={"path": marker.url},
            )
        return StepState.NOT_DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`. Raises as :meth:`verify`."""
        argument, marker = self._parts(context)
        reached("step.success.before")
        if self.verify(context) is StepState.NOT_DONE:
            mover = Mover(context.arg.uuid, context.check)
            mover.write(marker, context.token.encode(), overwrite=argument.overwrite)
        reached("step.success.after")

    def undo(self, context: StepContext) -> bool:
        """Remove it. A marker that it replaced is not restored: the files may differ from those that it
        confirmed."""
        _, marker = self._parts(context)
        if _text_of(marker) != context.token:
            return True
        context.check()
        marker.remove()
        return True

    def _parts(self, context: StepContext) -> tuple[SuccessArgument, StoredFile]:
        argument = argument_of(self, SuccessArgument)
        return argument, StoredFile.of(argument.path, context.arg)


def _in_the_way(target: StoredFile, existing: ExistingFile, content: Content) -> StepConflict:
    return StepConflict(
        f"{target.url} must be {content}, but another file is there: {existing}",
        details={"path": target.url, "planned": str(content), "found": str(existing)},
    )


def _octal(mode: str) -> int:
    try:
        return int(mode, 8)
    except ValueError:
        raise PermanentStepError(f"{mode!r} is not a folder mode: write octal digits") from None


def _is_empty(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return False


def _text_of(marker: StoredFile) -> str | None:
    """The content of a small file; ``None`` if it does not exist."""
    try:
        with marker.open_to_read() as stream:
            held: bytes = stream.read(MAX_MARKER_BYTES)
    except FileNotFoundError:
        return None
    return held.decode(errors="replace")
