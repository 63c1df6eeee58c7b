"""Landing folders: batches that are dropped into a folder are published, in order, for one table or for many
(:class:`Landings`).

Below the folder of a table, every folder with a ``_SUCCESS`` file is a batch, named by its path. etcd
remembers what is published, and the folder contains what to publish: this process has no state of its own,
may be killed at any time, and may run twice.

Control files:

``_SUCCESS``
    In a folder with data: it is a batch, complete from now on.
``_POINTER``
    In place of data: its URLs, one per line.
``_config/ORDERME``
    Batches below are applied strictly in order; others at once, as they arrive.
``_config/*.json``
    Parts of the operation's argument. They are merged from the outermost folder inwards, including nested
    objects; the nearest one takes precedence.
``_HISTORYDONE``
    In the table's folder: opens its gate, once.
``_BACKFILL``
    In the table's folder: approves the batch it names, or the one that waits for approval. It is removed even
    if there was nothing to approve.
"""

from __future__ import annotations

import errno
import json
import logging
import posixpath
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any, Protocol
from urllib.parse import urlsplit

import fsspec

from distop.client.backlog import Ordering
from distop.client.blocking import Client
from distop.errors import DistopError, InvalidArgument, NotFound, SourceIncomplete, Unavailable, encodable
from distop.lake.storage.storage import modified, require_file_system, version
from distop.metastore.crashpoints import reached
from distop.sources.formats.files import marker_versions

SUCCESS, POINTER, HISTORY_DONE, BACKFILL = "_SUCCESS", "_POINTER", "_HISTORYDONE", "_BACKFILL"
CONFIG, ORDER_ME = "_config", "ORDERME"

MAX_DEPTH = 32
MAX_CONFIG_BYTES = 100_000
MAX_POINTERS = 1_000
MAX_SEARCHED = 200
"""Folders without batches that one look searches for misplaced control files."""

Entries = Mapping[str, Mapping[str, Any]]
"""The entries of a folder, by name, as the file system describes them."""


class FolderFileSystem(Protocol):
    """The used part of fsspec's ``AbstractFileSystem``."""

    def ls(self, path: str, detail: bool = ...) -> list[dict[str, Any]]: ...
    def cat_file(self, path: str, start: int = ..., end: int = ...) -> bytes: ...
    def mv(self, path1: str, path2: str) -> Any: ...
    def rm_file(self, path: str) -> Any: ...
    def invalidate_cache(self, path: str | None = ...) -> None: ...


OpenFileSystem = Callable[[str], tuple[FolderFileSystem, str]]
open_file_system: OpenFileSystem = fsspec.core.url_to_fs


@dataclass(frozen=True)
class LandedBatch:
    """A complete batch in the folder."""

    name: str
    ordered: bool
    argument: dict[str, Any]
    marker: str
    """URL of the ``_SUCCESS`` next to its data. Empty if the data is elsewhere: who reads it may then have no
    access to this folder."""
    written: float
    """When its ``_SUCCESS`` was written, in seconds since the Unix epoch; 0: unknown."""
    version: str
    """The version of its ``_SUCCESS`` in the listing of its folder."""


@dataclass(frozen=True)
class LandingScope:
    """The configuration for the batches in a folder and below it."""

    ordered: bool = False
    argument: Mapping[str, Any] = field(default_factory=dict)


class Walk:
    """One look at the content of a folder.

    Parameters
    ----------
    root:
        The folder, as its file system names it.
    url_prefix:
        Prefix that makes a URL of such a name, such as ``s3://``.
    known:
        Names of batches whose folders need not be examined.
    """

    def __init__(
        self, fs: FolderFileSystem, root: str, *, url_prefix: str = "", known: Container[str] = ()
    ) -> None:
        self._fs, self._root, self._url_prefix, self._known = fs, root, url_prefix, known
        self._to_search = MAX_SEARCHED
        self.problems: dict[str, str] = {}
        """Path below the root -> the problem there. Everything else continues."""
        self.entries: Entries = self._entries(root) or {}
        """The entries of the root itself."""

    def scope(self, outer: LandingScope) -> LandingScope | None:
        """The configuration of the root; ``None`` if it cannot be read."""
        return self._scope(self._root, self.entries, outer)

    def folders(self) -> list[str]:
        """The names of the folders in the root."""
        return sorted(child for child, entry in self.entries.items() if _is_visible_folder(child, entry))

    def batches(self, outer: LandingScope) -> Iterator[LandedBatch]:
        """The complete batches below the root, except the known ones."""
        if SUCCESS in self.entries:
            self.problems[SUCCESS] = "misplaced: the table's folder itself is not a batch"
        yield from self._below(self._root, self.entries, outer, 0)

    def misplaced(self, names: tuple[str, ...], where: str) -> None:
        """Report control files in the root that belong elsewhere."""
        for name in names:
            if name in self.entries:
                self.problems[name] = f"misplaced: {name} belongs into {where}"

    def search_hidden(self, folder: str, entries: Entries) -> None:
        """Report a folder that would be a batch if the name of a folder above did not hide it."""
        for child, entry in sorted(entries.items()):
            if not (_is_folder(entry) and child.startswith(("_", "."))) or child == CONFIG:
                continue
            for path in self._search(f"{folder}/{child}", (SUCCESS,)):
                self.problems[path] = (
                    "not a batch: folders whose names begin with '_' or '.' are skipped with their content"
                )
                break  # one report is enough

    # -- folders ---------------------------------------------------------------------------------------

    def _below(self, folder: str, entries: Entries, outer: LandingScope, depth: int) -> Iterator[LandedBatch]:
        scope = self._scope(folder, entries, outer)
        if scope is None:
            return  # nothing is published with an unreadable configuration
        self.search_hidden(folder, entries)
        for child, entry in sorted(entries.items()):
            if _is_visible_folder(child, entry):
                yield from self._folder(f"{folder}/{child}", scope, depth + 1)

    def _folder(self, folder: str, outer: LandingScope, depth: int) -> Iterator[LandedBatch]:
        name = self._name(folder)
        if name in self._known:
            return
        if depth > MAX_DEPTH:
            self.problems[name] = f"folders are nested more than {MAX_DEPTH} deep"
            return
        entries = self._entries(folder)
        if entries is None:
            return
        for control in (HISTORY_DONE, BACKFILL):
            if control in entries:
                self.problems[f"{name}/{control}"] = f"misplaced: {control} belongs into the table's folder"
        if SUCCESS not in entries:
            yield from self._below(folder, entries, outer, depth)
            return
        scope = self._scope(folder, entries, outer)
        batch = self._batch(name, folder, entries, scope) if scope is not None else None
        if batch is None:
            return
        for child, entry in sorted(entries.items()):
            if _is_folder(entry) and child != CONFIG:
                within = (SUCCESS, HISTORY_DONE, BACKFILL, ORDER_ME, CONFIG)
                for path in self._search(f"{folder}/{child}", within):
                    self.problems[path] = f"misplaced: it is inside batch {name!r}, and is ignored"
        yield batch

    def _search(self, folder: str, names: tuple[str, ...]) -> Iterator[str]:
        """Positions of these control files in a folder without batches."""
        folders = [folder]
        while folders and self._to_search:
            self._to_search -= 1
            here = folders.pop(0)
            entries = self._entries(here) or {}
            yield from (f"{self._name(here)}/{name}" for name in names if name in entries)
            folders += [f"{here}/{child}" for child, entry in sorted(entries.items()) if _is_folder(entry)]

    def _entries(self, folder: str) -> Entries | None:
        """The entries of a folder; ``None``, and a problem, if it cannot be read."""
        try:
            listed = self._fs.ls(folder, detail=True)
        except FileNotFoundError:
            return {}  # removed since its parent was listed, or not there yet
        except OSError as error:
            self.problems[self._name(folder)] = f"cannot be read: {error}"
            return None
        entries = {entry["name"].rstrip("/"): entry for entry in listed}
        entries.pop(folder, None)
        for path in [path for path in entries if not _is_utf8(path)]:
            del entries[path]
            self.problems[encodable(self._name(path))] = "it is left out: its name is not UTF-8"
        return {posixpath.basename(path): entry for path, entry in entries.items()}

    def _name(self, path: str) -> str:
        return path[len(self._root) :].strip("/")

    # -- files -----------------------------------------------------------------------------------------

    def _scope(self, folder: str, entries: Entries, outer: LandingScope) -> LandingScope | None:
        """The configuration of this folder, merged into the outer one's."""
        ordered, argument = outer.ordered, dict(outer.argument)
        if CONFIG in entries:
            files = self._entries(f"{folder}/{CONFIG}")
            if files is None:
                return None
            for file in sorted(files):
                path = f"{folder}/{CONFIG}/{file}"
                if file == ORDER_ME:
                    ordered = True
                elif file.endswith(".json"):
                    try:
                        argument = _merged(argument, self._json(path))
                    except (OSError, ValueError, RecursionError, InvalidArgument) as error:
                        self.problems[self._name(path)] = f"not a JSON object: {error}"
                        return None
                elif file in (HISTORY_DONE, BACKFILL):
                    problem = f"misplaced: {file} belongs into the table's folder"
                    self.problems[self._name(path)] = problem
                elif not file.startswith("."):
                    self.problems[self._name(path)] = f"{file} is unknown"
        if ORDER_ME in entries:
            path = self._name(f"{folder}/{ORDER_ME}")
            self.problems[path] = f"misplaced: {ORDER_ME} belongs into a folder {CONFIG}"
            if not ordered:
                # An order is requested here: applying batches without it could not be undone.
                self.problems[path] += "; nothing below is published before it is moved there, or removed"
                return None
        return LandingScope(ordered, argument)

    def _json(self, path: str) -> dict[str, Any]:
        value = json.loads(self._small(path))
        if not isinstance(value, dict):
            raise InvalidArgument("it is another JSON value")
        return value

    def _small(self, path: str) -> bytes:
        content = beginning(self._fs, path, MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise InvalidArgument(f"larger than {MAX_CONFIG_BYTES:,} bytes")
        return content

    def _batch(self, name: str, folder: str, entries: Entries, scope: LandingScope) -> LandedBatch | None:
        paths = [f"{self._url_prefix}{folder}"]
        if POINTER in entries:
            data = sorted(child for child in entries if not child.startswith(("_", ".")))
            if data:
                self.problems[name] = f"it holds {data[0]!r} and {POINTER}: remove one of them"
                return None
            try:
                text = self._small(f"{folder}/{POINTER}").decode()
            except (OSError, ValueError, InvalidArgument) as error:
                self.problems[name] = f"{POINTER} cannot be read: {error}"
                return None
            paths = [line.strip() for line in text.splitlines() if line.strip()]
            if not 1 <= len(paths) <= MAX_POINTERS:
                self.problems[name] = f"{POINTER} names {len(paths)} places"
                return None
        # A batch without data is published, too: the operation fails, and names the batch.
        marker = "" if POINTER in entries else f"{paths[0]}/{SUCCESS}"
        written = modified(entries[SUCCESS])
        return LandedBatch(
            name,
            scope.ordered,
            {**scope.argument, "paths": paths},
            marker,
            0.0 if written is None else written.timestamp(),
            version(entries[SUCCESS]),
        )


def beginning(fs: FolderFileSystem, path: str, size: int) -> bytes:
    """At most the first ``size`` bytes of a file, which may be empty."""
    try:
        return fs.cat_file(path, 0, size)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # S3 refuses any range of an empty object; if it is something else, it is raised again.
        return fs.cat_file(path)[:size]


def _is_utf8(name: str) -> bool:
    """File systems may have any bytes in names; Python holds those that are no text as surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_folder(entry: Mapping[str, Any]) -> bool:
    return bool(entry["type"] == "directory")


def _is_visible_folder(name: str, entry: Mapping[str, Any]) -> bool:
    return _is_folder(entry) and not name.startswith(("_", "."))


def _merged(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """Objects are merged; for other values the inner one takes precedence."""
    merged = dict(outer)
    for name, value in inner.items():
        before = merged.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[name] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged


log = logging.getLogger(__name__)

MAX_CHECKED = 20
"""Published batches whose ``_SUCCESS`` is checked at one look, in turns."""


@dataclass
class LandingReport:
    """The result of one look at a folder."""

    published: list[str] = field(default_factory=list)
    """Batches that were queued; also to replace their rows."""
    known: list[str] = field(default_factory=list)
    """Batches that the table had already: queued, applied or skipped before."""
    passed_over: list[str] = field(default_factory=list)
    """Batches that the table no longer remembers: it may have applied them. They are ignored."""
    problems: dict[str, str] = field(default_factory=dict)
    """Path -> the problem there; an empty path: of the folder. The rest continues."""
    controls: list[str] = field(default_factory=list)
    """Control files that were executed."""


class Problems:
    """Reports a problem when it is found, not again at each look."""

    def __init__(self) -> None:
        self._logged: dict[str, str] = {}

    def log_new(self, table: str, problems: dict[str, str]) -> None:
        for path, problem in problems.items():
            if self._logged.get(path) != problem:
                log.warning("landing_problem", extra={"table": table, "path": path, "problem": problem})
        self._logged = dict(problems)


class Landing:
    """Feeds one table from one folder.

    Parameters
    ----------
    url:
        The folder of the table, on any file system that fsspec knows.
    type:
        The operation type that applies batches. Its argument is the configuration, plus ``paths``, and
        ``markers`` of ``ingest``.
    replace:
        Whether a batch that was written again since it was applied is replaced.
    """

    def __init__(
        self,
        client: Client,
        table: str,
        url: str,
        *,
        type: str = "ingest",
        replace: bool = False,
        open_file_system: OpenFileSystem = open_file_system,
    ) -> None:
        self._table, self._type, self._replace = client.table(table), type, replace
        require_file_system(url)
        self._fs, root = open_file_system(url)
        self._root = root.rstrip("/")
        parts = urlsplit(url)
        self._url_prefix = f"{parts.scheme}://" if parts.scheme else ""
        self._done: dict[str, str] = {}
        """Batches published by this process, and their markers, as in :class:`LandedBatch`: their folders are
        not examined again."""
        self._checked: dict[str, str] = {}
        """The version of a batch's marker with which it was last compared."""
        self._turn = 0
        """Number of markers that were checked."""
        self._ended: dict[str, datetime | None] | None = None
        """When batches without an order have ended, of those that the table remembered at first."""
        self._problems = Problems()

    def poll(self, outer: LandingScope | None = None) -> LandingReport:
        """Look once, publish what is new, obey control files.

        Problems with one batch or file, or with the table, are reported and affect nothing else. Raises
        :class:`~distop.errors.Unavailable` when the service does not answer.

        Parameters
        ----------
        outer:
            The configuration of folders above.
        """
        self._fs.invalidate_cache()
        report = LandingReport()
        walk = Walk(self._fs, self._root, url_prefix=self._url_prefix, known=self._done)
        again = self._next_checked()
        report.problems = walk.problems
        batches = sorted(walk.batches(outer or LandingScope()), key=lambda batch: batch.name.encode())
        try:
            ordering = self._table.ordering()
            self._report_failed(ordering, report)
            report.problems.update({name: self._rewritten_message(name) for name in ordering.rewritten})
            doubtful = self._perhaps_forgotten(batches, ordering)
            if doubtful:
                report.problems[""] = _of_doubtful(self._table.name, doubtful)
            left_out = set(doubtful)
            for batch in batches:
                if batch.name in left_out:
                    continue
                if batch.ordered and batch.name.encode() <= ordering.forgotten.encode():
                    report.passed_over.append(batch.name)
                    self._done[batch.name] = ""
                else:
                    self._attempt(report, batch.name, partial(self._publish, batch, report))
            for name in again:
                self._attempt(report, name, partial(self._check, name, report))
            if HISTORY_DONE in walk.entries:
                written = version(walk.entries[HISTORY_DONE])
                self._attempt(report, HISTORY_DONE, lambda: self._open_gate(written, ordering, report))
            if BACKFILL in walk.entries:
                self._attempt(report, BACKFILL, lambda: self._approve(report))
        except Unavailable:
            raise
        except DistopError as error:
            report.problems[""] = f"{error.code}: {error.message}"
        self._problems.log_new(self._table.name, report.problems)
        return report

    def _perhaps_forgotten(self, batches: Sequence[LandedBatch], ordering: Ordering) -> list[str]:
        """Batches without an order that the table may have applied, and forgotten since: they were complete
        before the first of those ended that it remembers.

        Asked once: what comes later is known to this process, or new.
        """
        unordered = [batch for batch in batches if not batch.ordered]
        if not unordered:
            return []
        if self._ended is None:
            ended = self._table.backlog(applied=True, ordered=False)
            self._ended = {batch.name: batch.finished_at for batch in ended}
        if len(self._ended) < ordering.remember:
            return []
        since = min(end.timestamp() for end in self._ended.values() if end is not None)
        old = [batch.name for batch in unordered if batch.written < since and batch.name not in self._ended]
        there = {batch.name for batch in self._table.backlog(ordered=False)} if old else set()
        return [name for name in old if name not in there]

    def _attempt(self, report: LandingReport, path: str, does: Callable[[], None]) -> None:
        """Problems of one batch or control file are reported, and affect no other."""
        try:
            does()
        except Unavailable:
            raise
        except DistopError as error:
            report.problems[path] = f"{error.code}: {error.message}"
        except OSError as error:
            report.problems[path] = f"cannot be read or removed: {error}"

    # -- batches ---------------------------------------------------------------------------------------

    def _publish(self, batch: LandedBatch, report: LandingReport) -> None:
        argument = batch.argument
        marker = batch.marker if self._type == "ingest" else ""
        if marker:  # it may wait for long, and is checked when it is read
            argument = argument | {"markers": [marker]}
        reached("landing.publish.before")
        answer = self._table.enqueue(batch.name, self._type, argument, ordered=batch.ordered)
        reached("landing.publish.after")
        if answer.became == "failed before":
            return
        self._done[batch.name] = marker
        if answer.became != "queued":
            report.known.append(batch.name)
            if answer.markers.get(marker, batch.version) == batch.version:
                self._checked[batch.name] = batch.version
            else:
                self._check(batch.name, report)
            return
        report.published.append(batch.name)
        fields = {"table": self._table.name, "batch": batch.name, "ordered": batch.ordered}
        log.info("batch_published", extra=fields)

    def _next_checked(self) -> list[str]:
        """Some of the batches that this process has published, in turns."""
        names = [name for name, marker in self._done.items() if marker]
        start, self._turn = self._turn % max(1, len(names)), self._turn + MAX_CHECKED
        return [*names[start:], *names[:start]][:MAX_CHECKED]

    def _check(self, name: str, report: LandingReport) -> None:
        """Compare the marker of a batch with that which the batch was applied with; if it was written again,
        say so or replace the batch, once for each version whichever process looks.

        Listings and single files may have times of different precision, so that a marker that seems to differ
        is looked at as its reader does. One that waits or runs is not compared: it may be read as it is now.
        """
        marker = self._done[name]
        try:
            present = marker_versions([marker])[marker]
        except SourceIncomplete:
            return  # it is being written
        if self._checked.get(name) == present:
            return
        try:
            batch = self._table.batch(name)
        except NotFound:
            return
        if batch.state not in ("applied", "skipped"):
            return
        if batch.state == "applied" and batch.markers.get(marker, present) != present:
            answer = self._table.batch_rewritten(name, batch.operation, present, replace=self._replace)
            if answer.became == "rewritten":
                report.problems[name] = self._rewritten_message(name)
            elif answer.became == "queued":
                report.problems.pop(name, None)
                report.published.append(name)
                log.info("batch_replaced", extra={"table": self._table.name, "batch": name})
            elif answer.operation != batch.operation:
                return  # it was queued or applied meanwhile
        self._checked[name] = present

    def _rewritten_message(self, name: str) -> str:
        return (
            "it was written again since it was applied, and the table has its old rows: "
            f"distop batch replace {self._table.name} {name}"
        )

    def _report_failed(self, ordering: Ordering, report: LandingReport) -> None:
        """Failed unordered batches: their folders are examined again, since another configuration may fix
        them."""
        for block in ordering.failed:
            self._done.pop(block.batch, None)
            report.problems[block.batch] = (
                f"{block.error.code}: {block.error.message}; remove the cause, then: "
                f"distop batch retry {self._table.name} {block.batch}; or skip it"
            )

    # -- control files ---------------------------------------------------------------------------------

    def _open_gate(self, written: str, ordering: Ordering, report: LandingReport) -> None:
        """Open the gate, once for each written ``_HISTORYDONE``: a gate that was closed again since stays
        closed, whichever process looks."""
        signal = sha256(f"{self._url_prefix}{self._root}\n{written}".encode()).hexdigest()[:32]
        if signal in ordering.signals:
            return
        reached("landing.gate.before")
        self._table.open_gate(f"{HISTORY_DONE} in {self._root}", signal=signal)
        reached("landing.gate.after")
        report.controls.append(HISTORY_DONE)

    def _approve(self, report: LandingReport) -> None:
        """Approve the batch that ``_BACKFILL`` names, or the one that waits; then remove the file.

        It answers for the present batch. If it stayed it would approve a batch that was never checked, so
        it is removed even if there was nothing to approve.

        The approved batch is written to the file before the approval: a repetition after a crash names the
        same batch. The waiting batch is read before the file: a process that approved it since has written
        its name there, or removed the file.
        """
        path = f"{self._root}/{BACKFILL}"
        awaiting = self._table.ordering().awaiting
        try:
            named = beginning(self._fs, path, MAX_CONFIG_BYTES).decode(errors="replace").strip()
        except FileNotFoundError:
            return
        if awaiting and not named:
            self._write(path, awaiting)
        approves = bool(awaiting) and named in ("", awaiting)
        if approves:
            reached("landing.approve.before")
            self._table.approve_batch(awaiting, f"{BACKFILL} in {self._root}")
            reached("landing.approve.after")
            report.controls.append(BACKFILL)
        else:
            waits = f"batch {awaiting!r} waits for approval" if awaiting else "nothing waits for approval"
            not_it = f", not {named!r}" if named else ""
            report.problems[BACKFILL] = f"{waits}{not_it}: it approved nothing, and was removed"
        with suppress(FileNotFoundError):  # another process may feed from the same folder
            self._fs.rm_file(path)

    def _write(self, path: str, text: str) -> None:
        """Replace a small file atomically."""
        with fsspec.open(f"{self._url_prefix}{path}.tmp", "wb") as file:
            file.write(text.encode())
        reached("landing.approve.middle")
        self._fs.mv(f"{path}.tmp", path)


def _of_doubtful(table: str, batches: list[str]) -> str:
    return (
        f"{len(batches):,} batches without an order may have been applied before, such as {batches[0]!r}: "
        "they are older than what the table remembers. Move away those that were; of others write _SUCCESS "
        f"again, or publish them with distop batch add {table} BATCH --unordered --republish"
    )


class Landings:
    """Feeds every table with a folder. See ``folder.Landing`` for the parameters."""

    def __init__(
        self,
        client: Client,
        url: str,
        *,
        type: str = "ingest",
        replace: bool = False,
        open_file_system: OpenFileSystem = open_file_system,
    ) -> None:
        self._client, self._url, self._type, self._replace = client, url.rstrip("/"), type, replace
        self._open = open_file_system
        self._feeds: dict[str, Landing] = {}
        self._problems = Problems()

    def poll(self) -> dict[str, LandingReport]:
        """Look once into the folder of each table; return a report by table. An empty name: problems of the
        folder itself.

        Its configuration applies to all tables; a nearer one takes precedence. Problems of one table are
        reported, and do not affect others. Raises :class:`~distop.errors.Unavailable` when the service does
        not answer.
        """
        fs, root = self._open(self._url)
        fs.invalidate_cache()
        walk = Walk(fs, root.rstrip("/"))
        scope = walk.scope(LandingScope())
        walk.misplaced((SUCCESS, HISTORY_DONE, BACKFILL), "a table's folder")
        walk.search_hidden(root.rstrip("/"), walk.entries)
        self._problems.log_new("", walk.problems)
        reports = {"": LandingReport(problems=walk.problems)} if walk.problems else {}
        if scope is None:
            return reports  # nothing is published with an unreadable configuration
        for table in walk.folders():
            reports[table] = self._feed(table).poll(scope)
        return reports

    def _feed(self, table: str) -> Landing:
        if table not in self._feeds:
            self._feeds[table] = Landing(
                self._client,
                table,
                f"{self._url}/{table}",
                type=self._type,
                replace=self._replace,
                open_file_system=self._open,
            )
        return self._feeds[table]
