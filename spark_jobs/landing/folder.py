"""Landing folders: batches that somebody drops into a folder are published, in their order.

Below the folder of a table, every folder that holds a ``_SUCCESS`` file is a batch, named by its path. What
is published is remembered in etcd, what is there to publish stands in the folder: this process has no state
of its own, may die at any time, and may run twice.

Control files:

``_SUCCESS``
    In a folder with data: it is a batch, complete from now on.
``_POINTER``
    In place of data: where they are, one URL a line.
``_config/ORDERME``
    Batches below are applied strictly in order; others at once, as they come.
``_config/*.json``
    Parts of the argument of the operation. They are merged from the outermost folder inwards, objects into
    each other; the nearest one wins.
``_HISTORYDONE``
    In the table's folder: opens its gate.
``_BACKFILL``
    In the table's folder: approves the batch it names, or the one that waits for approval.
"""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol
from urllib.parse import urlsplit

import fsspec

from distop.client.blocking import Client
from distop.commit.files.storage import require_file_system
from distop.errors import DistopError, InvalidArgument

log = logging.getLogger(__name__)

SUCCESS, POINTER, HISTORY_DONE, BACKFILL = "_SUCCESS", "_POINTER", "_HISTORYDONE", "_BACKFILL"
CONFIG, ORDER_ME = "_config", "ORDERME"

IN_THE_WAY = "INCOMPATIBLE_OPERATION"
KNOWN_BEFORE = frozenset({"REQUEST_ID_REUSED", "ALREADY_INGESTED"})
"""What is answered when an unordered batch comes again: with another configuration, or long after it was
applied."""

MAX_DEPTH = 32
MAX_CONFIG_BYTES = 100_000
MAX_POINTERS = 1_000
MAX_OBJECT_BYTES = 400


class FileSystem(Protocol):
    """The part of fsspec's ``AbstractFileSystem`` that is used."""

    def ls(self, path: str, detail: bool = ...) -> list[dict[str, Any]]: ...
    def cat_file(self, path: str, start: int = ..., end: int = ...) -> bytes: ...
    def exists(self, path: str) -> bool: ...
    def mv(self, path1: str, path2: str) -> Any: ...
    def rm_file(self, path: str) -> Any: ...
    def invalidate_cache(self, path: str | None = ...) -> None: ...


@dataclass(frozen=True)
class Found:
    """A batch that lies there, complete."""

    name: str
    ordered: bool
    argument: dict[str, Any]


@dataclass
class Report:
    """What one look at a folder came to."""

    published: list[str] = field(default_factory=list)
    """Batches that were queued or started, or had been before."""
    passed_over: list[str] = field(default_factory=list)
    """Batches of which the table does not know any more whether it has applied them. They are left alone."""
    problems: dict[str, str] = field(default_factory=dict)
    """Path -> what is wrong there. The rest goes on."""
    controls: list[str] = field(default_factory=list)
    """Control files that were obeyed."""


@dataclass(frozen=True)
class _Scope:
    """What holds in a folder and below."""

    ordered: bool = False
    argument: Mapping[str, Any] = field(default_factory=dict)


class Landing:
    """Feeds one table from one folder.

    Parameters
    ----------
    url:
        The folder of the table, on any file system that fsspec knows.
    type:
        The operation type that applies batches. Its argument is what the configuration says, and ``paths``.
    """

    def __init__(
        self,
        client: Client,
        table: str,
        url: str,
        *,
        type: str = "ingest",
        open_file_system: Callable[[str], tuple[FileSystem, str]] = fsspec.core.url_to_fs,
    ) -> None:
        self._client, self._table, self._type = client, table, type
        require_file_system(url)
        self._fs, root = open_file_system(url)
        self._root = root.rstrip("/")
        parts = urlsplit(url)
        self._url_prefix = f"{parts.scheme}://" if parts.scheme else ""
        self._done: set[str] = set()
        """Batches published by this process: their folders are not looked into again."""
        self._told: set[str] = set()

    def poll(self) -> Report:
        """Look once, publish what is new, obey control files.

        One batch or file that is wrong is reported and keeps nothing else. Raises when the service does not
        answer, or the folder cannot be read at all.
        """
        self._fs.invalidate_cache()
        report = Report()
        found = list(self._walk(self._root, _Scope(), report, 0))
        ordered = any(batch.ordered for batch in found)
        forgotten = self._client.ordering(self._table).forgotten if ordered else ""
        for batch in sorted(found, key=lambda one: one.name.encode()):
            if batch.ordered and batch.name.encode() <= forgotten.encode():
                report.passed_over.append(batch.name)
                self._done.add(batch.name)
                continue
            try:
                self._publish(batch)
            except DistopError as error:
                if error.code == IN_THE_WAY:
                    continue  # unordered, and its type runs once at a time: its turn comes with a later look
                if error.retryable:
                    raise
                report.problems[batch.name] = f"{error.code}: {error.message}"
                continue
            self._done.add(batch.name)
            report.published.append(batch.name)
        self._obey(report)
        for path, problem in report.problems.items():
            if (told := f"{path}: {problem}") not in self._told:
                self._told.add(told)
                log.warning("landing_problem", extra={"table": self._table, "path": path, "problem": problem})
        return report

    # -- what lies there -------------------------------------------------------------------------------

    def _walk(self, folder: str, outer: _Scope, report: Report, depth: int) -> Iterator[Found]:
        """The batches below a folder that this process has not published yet."""
        name = folder[len(self._root) :].strip("/")
        if name in self._done:
            return
        if depth > MAX_DEPTH:
            report.problems[name] = f"folders are nested more than {MAX_DEPTH} deep"
            return
        entries = {posixpath.basename(entry["name"].rstrip("/")): entry for entry in self._list(folder)}
        scope = self._scope(folder, entries, outer, report)
        if scope is None:
            return  # nothing is published under a configuration that cannot be read
        for control in (HISTORY_DONE, BACKFILL, ORDER_ME):
            if control in entries and folder != self._root:
                where = "the table's folder" if control != ORDER_ME else f"a folder {CONFIG}"
                report.problems[f"{name}/{control}"] = f"misplaced: {control} belongs into {where}"
        if SUCCESS in entries and not name:
            report.problems[SUCCESS] = "misplaced: the table's folder itself is no batch"
        elif SUCCESS in entries:
            batch = self._batch(name, folder, entries, scope, report)
            if batch is not None:
                yield batch
            return
        for child, entry in sorted(entries.items()):
            if entry["type"] == "directory" and not child.startswith(("_", ".")):
                yield from self._walk(f"{folder}/{child}", scope, report, depth + 1)

    def _list(self, folder: str) -> list[dict[str, Any]]:
        try:
            return [
                entry for entry in self._fs.ls(folder, detail=True) if entry["name"].rstrip("/") != folder
            ]
        except FileNotFoundError:
            return []  # removed since its parent was listed, or not there yet

    def _scope(self, folder: str, entries: Mapping[str, Any], outer: _Scope, report: Report) -> _Scope | None:
        """What holds in this folder: what its configuration adds to the outer one's."""
        if CONFIG not in entries:
            return outer
        ordered, argument = outer.ordered, dict(outer.argument)
        files = sorted(posixpath.basename(entry["name"]) for entry in self._list(f"{folder}/{CONFIG}"))
        for file in files:
            path = f"{folder}/{CONFIG}/{file}"
            if file == ORDER_ME:
                ordered = True
            elif file.endswith(".json"):
                try:
                    argument = _merged(argument, self._json(path))
                except (ValueError, InvalidArgument) as error:
                    report.problems[path[len(self._root) + 1 :]] = f"no JSON object: {error}"
                    return None
            elif not file.startswith("."):
                report.problems[path[len(self._root) + 1 :]] = f"nothing is known of {file}"
        return _Scope(ordered, argument)

    def _json(self, path: str) -> dict[str, Any]:
        content = self._fs.cat_file(path, 0, MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise InvalidArgument(f"larger than {MAX_CONFIG_BYTES:,} bytes")
        value = json.loads(content)
        if not isinstance(value, dict):
            raise InvalidArgument("it is something else")
        return value

    def _batch(
        self, name: str, folder: str, entries: Mapping[str, Any], scope: _Scope, report: Report
    ) -> Found | None:
        paths = [f"{self._url_prefix}{folder}"]
        if POINTER in entries:
            text = self._fs.cat_file(f"{folder}/{POINTER}", 0, MAX_CONFIG_BYTES).decode(errors="replace")
            paths = [line.strip() for line in text.splitlines() if line.strip()]
            if not 1 <= len(paths) <= MAX_POINTERS:
                report.problems[name] = f"{POINTER} names {len(paths)} places"
                return None
        # Without any data it is published all the same: the operation fails, and says which batch it was.
        return Found(name, scope.ordered, {**scope.argument, "paths": paths})

    # -- what to do about it ---------------------------------------------------------------------------

    def _publish(self, batch: Found) -> None:
        if batch.ordered:
            self._client.enqueue(self._table, batch.name, self._type, batch.argument)
        else:
            self._start(batch)
        fields = {"table": self._table, "batch": batch.name, "ordered": batch.ordered}
        log.info("batch_published", extra=fields)

    def _start(self, batch: Found) -> None:
        """Start the operation of an unordered batch, beside those of others where the type can do that."""
        # The request id makes it one operation, however often it is found, and by whom.
        digest = sha256(f"{self._root}\n{batch.name}".encode()).hexdigest()[:32]
        name = batch.name if len(batch.name.encode()) <= MAX_OBJECT_BYTES else digest
        for one in (f"batch:{name}", ""):
            try:
                self._client.start(
                    self._table, self._type, batch.argument, object=one, request_id=f"landing-{digest}"
                )
            except DistopError as error:
                if error.code in KNOWN_BEFORE:
                    return
                if not one or error.details.get("field") != "object":
                    raise
                # One at a time, then: this type takes no objects, or this argument does not allow it.
            else:
                return

    def _obey(self, report: Report) -> None:
        root = {posixpath.basename(entry["name"].rstrip("/")) for entry in self._list(self._root)}
        if HISTORY_DONE in root and HISTORY_DONE not in self._done:
            self._client.open_gate(self._table, f"{HISTORY_DONE} in {self._root}")
            self._done.add(HISTORY_DONE)
            report.controls.append(HISTORY_DONE)
        if BACKFILL in root:
            self._approve(report)

    def _approve(self, report: Report) -> None:
        """Approve the batch that ``_BACKFILL`` names, or the one that waits; then take the file away.

        What is approved is fixed in the file before it is: an approval that is repeated after a crash names
        the same batch, and no other is ever approved by it.
        """
        path = f"{self._root}/{BACKFILL}"
        batch = self._fs.cat_file(path, 0, MAX_CONFIG_BYTES).decode(errors="replace").strip()
        if not batch:
            batch = self._client.ordering(self._table).awaiting
            if not batch:
                return  # it stays until there is something to approve
            self._write(path, batch)
        try:
            self._client.approve(self._table, batch, f"{BACKFILL} in {self._root}")
        except DistopError as error:
            if error.retryable:
                raise
            report.problems[BACKFILL] = f"{error.code}: {error.message}"
            return
        self._fs.rm_file(path)
        report.controls.append(BACKFILL)

    def _write(self, path: str, text: str) -> None:
        """Replace a small file as a whole."""
        with fsspec.open(f"{self._url_prefix}{path}.tmp", "wb") as file:
            file.write(text.encode())
        self._fs.mv(f"{path}.tmp", path)


def _merged(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """Objects are merged into each other, of everything else the inner one counts."""
    merged = dict(outer)
    for name, value in inner.items():
        before = merged.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[name] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged
