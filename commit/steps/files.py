"""Commit steps on files: rename, delete, make a folder, take a marker away, write one.

Each looks before it acts, at sizes and checksums, and can be repeated after any part of it. Names are taken
as they are, whatever they are made of (C12).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import ClassVar

from distop.commit.files.moving import Mover
from distop.commit.files.places import Content, Place, Seen
from distop.commit.steps.contract import ExternalStep, StepArgument, StepContext, StepState, argument_of
from distop.errors import PermanentStepError, StepConflict, StepSourceMissing
from distop.metastore.crashpoints import reached

MAX_MARKER_BYTES = 4096
"""Much more than a token takes."""


class RenameArgument(StepArgument):
    """What a :class:`Rename` works on."""

    STEP: ClassVar[str] = "files.rename"

    source: str
    """URL of a file that belongs to the operation alone; it is gone afterwards."""
    target: str
    """URL of where it is to be; may be on another file system."""
    size: int
    checksum: str
    """``md5:<hex>`` of the content, or ``etag:<etag>``."""
    overwrite: bool = False
    """Whether a file of other content at the target is replaced; else it is a conflict."""


class DeleteArgument(StepArgument):
    """What a :class:`Delete` works on."""

    STEP: ClassVar[str] = "files.delete"

    path: str
    """URL of the file."""
    size: int
    version: str
    """``etag:...`` or ``mtime:...``, as :meth:`of` found it."""

    @classmethod
    def of(cls, place: Place) -> DeleteArgument | None:
        """The file as it is now; ``None`` if there is none."""
        seen = place.seen()
        if seen is None or seen.folder:
            return None
        return cls(path=place.url, size=seen.size, version=seen.version)


class FolderArgument(StepArgument):
    """What a :class:`MakeFolder` works on."""

    STEP: ClassVar[str] = "files.mkdir"

    path: str
    mode: str = ""
    """Permissions in octal digits, such as ``0750``; empty: as the system makes it."""


class SuccessArgument(StepArgument):
    """What a :class:`SuccessMarker` works on."""

    STEP: ClassVar[str] = "files.success"

    path: str
    """URL of the marker, its name included."""
    overwrite: bool = False
    """Whether the marker of another operation is replaced; else it is a conflict."""


class UnmarkArgument(StepArgument):
    """What an :class:`Unmark` works on."""

    STEP: ClassVar[str] = "files.unmark"

    path: str
    """URL of the marker, its name included."""


class Rename(ExternalStep):
    """Moves a file to its final place, by a copy where there is no rename."""

    looks_itself: ClassVar[bool] = True

    _looked: tuple[Seen | None] | None = None

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`.

        Raises
        ------
        StepConflict
            Something else stands at the target, and the step may not replace it (C5).
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
            The source is gone and the target is not what it should be (C6).
        StepConflict
            The source is not what was planned; or as :meth:`verify`.
        """
        argument, source, target, content = self._parts(context)
        mover = Mover(context.arg.uuid, context.check)
        mover.clean(target)
        reached("step.rename.before")
        # What verify() saw a moment ago is not asked for again: on object stores each look costs a request.
        looked, self._looked = self._looked, None
        seen = looked[0] if looked else target.seen()
        origin = source.seen()
        if target.holds(content, seen):
            # An earlier execution came this far.
            context.check()
            source.remove()
        elif origin is None:
            raise StepSourceMissing(
                f"{source.url} is gone, and {target.url} is {seen or 'not there'} instead of {content}",
                details={"source": source.url, "target": target.url},
            )
        elif origin.size != content.size or (source.is_object_store and not source.holds(content, origin)):
            # On a disk the size must do: reading all files again would cost as much as writing them.
            raise StepConflict(
                f"{source.url} is not what was to be published: it was to be {content}, and is {origin}",
                details={"path": source.url, "planned": str(content), "found": str(origin)},
            )
        elif seen is not None and not (argument.overwrite and not seen.folder):
            raise _in_the_way(target, seen, content)
        else:
            mover.move(source, target, content, overwrite=argument.overwrite)
        reached("step.rename.after")

    def undo(self, context: StepContext) -> bool:
        """Bring the file back. What it has replaced is lost: then nothing is undone."""
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


class Delete(ExternalStep):
    """Deletes a file, if it is still the one that was planned to go (C14)."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`. Raises :class:`~distop.errors.StepConflict` if the file has changed."""
        place, planned = self._parts(context)
        return StepState.DONE if place.check_planned(planned, "its deletion") is None else StepState.NOT_DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`. Raises as :meth:`verify`."""
        place, planned = self._parts(context)
        reached("step.delete.before")
        # After the check, so that as little time as possible lies between the look and the act.
        context.check()
        if place.check_planned(planned, "its deletion") is not None:
            place.remove()
        reached("step.delete.after")

    def undo(self, context: StepContext) -> bool:
        """What is deleted is gone."""
        place, _ = self._parts(context)
        return place.seen() is not None

    def _parts(self, context: StepContext) -> tuple[Place, Seen]:
        argument = argument_of(self, DeleteArgument)
        return Place.of(argument.path, context.arg), Seen(argument.size, argument.version)


class MakeFolder(ExternalStep):
    """Makes a folder, and those above it, with the given permissions. Object stores have no folders."""

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
            raise StepConflict(f"{place.url} was to be a folder, and is a file", details={"path": place.url})
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
        """Remove it if it is empty; folders above it stay."""
        _, place = self._parts(context)
        if place.is_local:
            with suppress(OSError):
                os.rmdir(place.path)
        return place.is_object_store or place.seen() is None

    def _parts(self, context: StepContext) -> tuple[FolderArgument, Place]:
        argument = argument_of(self, FolderArgument)
        return argument, Place.of(argument.path, context.arg)


class Unmark(ExternalStep):
    """Takes ``_SUCCESS`` of an earlier operation away: what it stands for is about to change."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`. The operation's own marker says that it has come further already."""
        stands = _text_of(self._place(context)) not in (None, context.token)
        return StepState.NOT_DONE if stands else StepState.DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`."""
        reached("step.unmark.before")
        context.check()
        if self.verify(context) is StepState.NOT_DONE:
            self._place(context).remove()
        reached("step.unmark.after")

    def undo(self, context: StepContext) -> bool:
        """What is removed is gone: nobody knows whether the files are again those that it stood for."""
        return self.verify(context) is StepState.NOT_DONE

    def _place(self, context: StepContext) -> Place:
        return Place.of(argument_of(self, UnmarkArgument).path, context.arg)


class SuccessMarker(ExternalStep):
    """Writes ``_SUCCESS``: a file that holds the operation's token, by which it recognises its own."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`.

        Raises :class:`~distop.errors.StepConflict` if the marker of another operation stands, and may not be
        replaced.
        """
        argument, place = self._parts(context)
        found = _text_of(place)
        if found == context.token:
            return StepState.DONE
        if found is not None and not argument.overwrite:
            raise StepConflict(
                f"{place.url} is of {found[:200]!r}, not of {context.token!r}", details={"path": place.url}
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
        """Remove it. Which marker it has replaced nobody knows."""
        argument, place = self._parts(context)
        if _text_of(place) != context.token:
            return True
        context.check()
        place.remove()
        return not argument.overwrite

    def _parts(self, context: StepContext) -> tuple[SuccessArgument, Place]:
        argument = argument_of(self, SuccessArgument)
        return argument, Place.of(argument.path, context.arg)


def _in_the_way(target: Place, seen: Seen, content: Content) -> StepConflict:
    return StepConflict(
        f"{target.url} is to be {content}, and something else stands there: {seen}",
        details={"path": target.url, "planned": str(content), "found": str(seen)},
    )


def _octal(mode: str) -> int:
    try:
        return int(mode, 8)
    except ValueError:
        raise PermanentStepError(f"{mode!r} is no mode of a folder: write octal digits") from None


def _text_of(place: Place) -> str | None:
    """What a small file holds; ``None`` if it is not there."""
    try:
        with place.open_to_read() as stream:
            held: bytes = stream.read(MAX_MARKER_BYTES)
    except FileNotFoundError:
        return None
    return held.decode(errors="replace")
