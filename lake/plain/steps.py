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
from distop.lake.storage.places import Content, ExistingFile, Place
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
    def of(cls, place: Place, root: str = "") -> DeleteFileArgument | None:
        """The present file; ``None`` if there is none."""
        seen = place.seen()
        if seen is None or seen.folder:
            return None
        return cls(path=place.url, size=seen.size, version=seen.version, root=root)


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
        seen = target.seen()
        self._looked = (seen,)
        if target.holds(content, seen):
            return StepState.NOT_DONE if source.seen() is not None else StepState.DONE
        if seen is not None and not (argument.overwrite and not seen.folder):
            raise _in_the_way(target, seen, content)
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
        seen = looked[0] if looked else target.seen()
        origin = source.seen()
        if target.holds(content, seen):
            # An earlier execution got this far.
            context.check()
            source.remove()
        elif origin is None:
            raise StepSourceMissing(
                f"{source.url} is gone, and {target.url} is {seen or 'missing'} instead of {content}",
                details={"source": source.url, "target": target.url},
            )
        elif origin.size != content.size or (source.is_object_store and not source.holds(content, origin)):
            # On a disk comparing the size is enough: reading all files again would cost as much as writing
            # them.
            raise StepConflict(
                f"{source.url} is not the file to publish: expected {content}, found {origin}",
                details={"path": source.url, "planned": str(content), "found": str(origin)},
            )
        elif seen is not None and not (argument.overwrite and not seen.folder):
            raise _in_the_way(target, seen, content)
        else:
            mover.move(source, target, content, overwrite=argument.overwrite)
        reached("step.rename.after")

    def undo(self, context: StepContext) -> bool:
        """Move the file back. If it replaced a file, that one is lost, and nothing is undone."""
        argument, source, target, content = self._parts(context)
        mover = Mover(context.arg.uuid, context.check)
        mover.clean(target)
        if not target.holds(content, target.seen()):
            return True
        if argument.overwrite:
            return False
        context.check()
        if source.seen() is None:
            mover.move(target, source, content, overwrite=True)
        else:
            target.remove()
        return True

    def _parts(self, context: StepContext) -> tuple[RenameArgument, Place, Place, Content]:
        argument = argument_of(self, RenameArgument)
        source, target = Place.of(argument.source, context.arg), Place.of(argument.target, context.arg)
        if source.fs is target.fs and source.path == target.path:
            raise PermanentStepError(f"{source.url} cannot be moved to itself")
        return argument, source, target, Content(argument.size, argument.checksum)


class DeleteFile(ExternalStep):
    """Deletes a file, if it is still the planned one (C14)."""

    skippable: ClassVar[bool] = True

    _tidied = False

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`. Raises :class:`~distop.errors.StepConflict` if the file has changed."""
        place, planned, folders = self._parts(context)
        if place.check_planned(planned, "its deletion") is not None:
            return StepState.NOT_DONE
        # An earlier execution may have ended in between. What cannot be removed stays, after one attempt.
        lowest = next(filter(os.path.isdir, folders), None)
        left = not self._tidied and lowest is not None and _is_empty(lowest)
        return StepState.NOT_DONE if left else StepState.DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`. Raises as :meth:`verify`."""
        place, planned, folders = self._parts(context)
        reached("step.delete.before")
        # After the check, to keep the time between look and deletion short.
        context.check()
        if place.check_planned(planned, "its deletion") is not None:
            place.remove()
        for folder in folders:
            with suppress(OSError):  # it has files, or another deletion has removed it
                os.rmdir(folder)
        self._tidied = True
        reached("step.delete.after")

    def undo(self, context: StepContext) -> bool:
        """A deleted file cannot be restored."""
        place, _, _ = self._parts(context)
        return place.seen() is not None

    def _parts(self, context: StepContext) -> tuple[Place, ExistingFile, list[str]]:
        """The file, what it must be, and the folders to remove once they are empty, the lowest first."""
        argument = argument_of(self, DeleteFileArgument)
        place = Place.of(argument.path, context.arg)
        folders: list[str] = []
        if argument.root and place.is_local:
            root, folder = Place.of(argument.root, context.arg).path.rstrip("/"), place.folder
            while folder.startswith(f"{root}/"):
                folders.append(folder)
                folder = os.path.dirname(folder)
        return place, ExistingFile(argument.size, argument.version), folders


class MakeFolder(ExternalStep):
    """Makes a folder, and its parents, with the given permissions. Object stores have no folders."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`. Raises :class:`~distop.errors.StepConflict` if it is a file."""
        argument, place = self._parts(context)
        if place.is_object_store:
            return StepState.DONE
        seen = place.seen()
        if seen is None:
            return StepState.NOT_DONE
        if not seen.folder:
            raise StepConflict(f"{place.url} must be a folder, but is a file", details={"path": place.url})
        if argument.mode and place.is_local and os.stat(place.path).st_mode & 0o7777 != _octal(argument.mode):
            return StepState.NOT_DONE
        return StepState.DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`."""
        argument, place = self._parts(context)
        if place.is_object_store:
            return
        reached("step.mkdir.before")
        if place.is_local:
            os.makedirs(place.path, exist_ok=True)
            if argument.mode:
                os.chmod(place.path, _octal(argument.mode))
        else:
            place.fs.makedirs(place.path, exist_ok=True)
        reached("step.mkdir.after")

    def undo(self, context: StepContext) -> bool:
        """Remove it if it is empty; folders above it stay.

        One that holds files is in use by others: nothing of this step is left but its permissions.
        """
        argument, place = self._parts(context)
        if place.is_local:
            with suppress(OSError):
                os.rmdir(place.path)
        return place.is_object_store or not argument.mode or place.seen() is None

    def _parts(self, context: StepContext) -> tuple[FolderArgument, Place]:
        argument = argument_of(self, FolderArgument)
        return argument, Place.of(argument.path, context.arg)


class Unmark(ExternalStep):
    """Removes ``_SUCCESS`` of an earlier operation: the files that it confirms are about to change."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`. The operation's own marker proves that it is beyond this step."""
        exists = _text_of(self._place(context)) not in (None, context.token)
        return StepState.NOT_DONE if exists else StepState.DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`."""
        reached("step.unmark.before")
        context.check()
        if self.verify(context) is StepState.NOT_DONE:
            self._place(context).remove()
        reached("step.unmark.after")

    def undo(self, context: StepContext) -> bool:
        """A removed marker is not restored: the files may differ from those that it confirmed. Nothing of
        this operation is left by that."""
        return True

    def _place(self, context: StepContext) -> Place:
        return Place.of(argument_of(self, UnmarkArgument).path, context.arg)


class SuccessMarker(ExternalStep):
    """Writes ``_SUCCESS`` with the operation's token, by which the operation recognises its own marker."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`.

        Raises :class:`~distop.errors.StepConflict` if the marker of another operation exists and may not be
        replaced.
        """
        argument, place = self._parts(context)
        found = _text_of(place)
        if found == context.token:
            return StepState.DONE
        if found is not None and not argument.overwrite:
            raise StepConflict(
                f"{place.url} belongs to {found[:200]!r}, not to {context.token!r}",
                details={"path": place.url},
            )
        return StepState.NOT_DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`. Raises as :meth:`verify`."""
        argument, place = self._parts(context)
        reached("step.success.before")
        if self.verify(context) is StepState.NOT_DONE:
            mover = Mover(context.arg.uuid, context.check)
            mover.write(place, context.token.encode(), overwrite=argument.overwrite)
        reached("step.success.after")

    def undo(self, context: StepContext) -> bool:
        """Remove it. A marker that it replaced is not restored: the files may differ from those that it
        confirmed."""
        _, place = self._parts(context)
        if _text_of(place) != context.token:
            return True
        context.check()
        place.remove()
        return True

    def _parts(self, context: StepContext) -> tuple[SuccessArgument, Place]:
        argument = argument_of(self, SuccessArgument)
        return argument, Place.of(argument.path, context.arg)


def _in_the_way(target: Place, seen: ExistingFile, content: Content) -> StepConflict:
    return StepConflict(
        f"{target.url} must be {content}, but another file is there: {seen}",
        details={"path": target.url, "planned": str(content), "found": str(seen)},
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


def _text_of(place: Place) -> str | None:
    """The content of a small file; ``None`` if it does not exist."""
    try:
        with place.open_to_read() as stream:
            held: bytes = stream.read(MAX_MARKER_BYTES)
    except FileNotFoundError:
        return None
    return held.decode(errors="replace")
