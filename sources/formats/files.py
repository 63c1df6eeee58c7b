"""Finds the files of a source, detects changes, and opens them; and the markers of a source that is complete.
Any fsspec file system.

Credentials come from the environment of the process (or fsspec's own configuration), never from an
operation's argument: that is stored in etcd, where operators can read it.
"""

from __future__ import annotations

import codecs
import io
import lzma
import os
import posixpath
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Protocol, cast

from distop.errors import (
    ArgumentTooLarge,
    Cancelled,
    DistopError,
    SourceEmpty,
    SourceIncomplete,
    SourceUnreadable,
)
from distop.lake.storage.allowed import check_source
from distop.lake.storage.storage import entity_tag, modified, require_file_system, version, web_options
from distop.metastore.tables.locations import refuse_password
from distop.operations.arguments import invalid

MAX_FILES = 100_000
MAX_PATHS = 1_000
MAX_DEPTH = 32
CHUNK_BYTES = 1 << 20
"""How much text of another encoding is read at a time."""
LISTING_SECONDS = 20.0
"""Longest listing of files."""

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".lz4": "lz4"}
"""Suffixes of compressed text files."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAGIC = frozenset("*?[")


class FileSystem(Protocol):
    """The used part of fsspec's ``AbstractFileSystem``."""

    protocol: Any

    def info(self, path: str) -> dict[str, Any]: ...
    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]: ...
    def glob(self, path: str) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def invalidate_cache(self) -> None: ...
    def unstrip_protocol(self, path: str) -> str: ...
    def open(self, path: str, mode: str) -> BinaryIO: ...


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file at the time it was found."""

    path: str
    """Path below the source's folder."""
    size: int
    version: int | str
    """Changes with the file: microseconds of its modification time, or its entity tag."""
    modified: datetime | None
    """UTC; ``None`` if the file system does not report it."""


@dataclass(frozen=True, slots=True)
class FoundSource:
    """The files of a source, by the paths they were found under."""

    url: str
    """URL of the folder that contains all paths, without a trailing slash."""
    partitions: dict[str, list[SourceFile]]
    """Path relative to that folder -> its files; both sorted by name."""

    @property
    def files(self) -> list[SourceFile]:
        return [file for files in self.partitions.values() for file in files]


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file of a source that can be opened repeatedly."""

    fs: FileSystem
    path: str
    url: str
    compression: str | None = None
    encoding: str = ""
    """Of its text; empty: its bytes are taken as they are."""

    @classmethod
    def at(cls, folder_url: str, path: str) -> OpenFile:
        """The file at ``path`` below a folder."""
        url = f"{folder_url}/{path}"
        fs, full = resolve(url)
        return cls(fs, full, url)

    def text(self, encoding: str = "") -> OpenFile:
        """The same file, decompressed according to its name, and as UTF-8."""
        compression = COMPRESSIONS.get(posixpath.splitext(self.path)[1].lower())
        return OpenFile(self.fs, self.path, self.url, compression, encoding)

    @property
    def is_plain(self) -> bool:
        """Whether its content is the bytes of the file, which can be read from anywhere."""
        return self.compression is None and not self.encoding

    def identity(self) -> tuple[int, int | str]:
        """The present size and version. Raises ``FileNotFoundError``."""
        self.fs.invalidate_cache()
        info = self.fs.info(self.path)
        return int(info["size"]), _version(info)

    def open(self) -> BinaryIO:
        """The file's content, decompressed and as UTF-8."""
        content = self._decompressed()
        return as_utf_8(content, self.encoding) if self.encoding else content

    def _decompressed(self) -> BinaryIO:
        if is_local(self.fs):  # a link may have replaced it since
            check_source(self.path)
        raw = self.fs.open(self.path, "rb")
        if self.compression is None:
            return raw
        if self.compression == "xz":
            return cast(BinaryIO, lzma.LZMAFile(raw))
        import pyarrow as pa

        # Continues after the end of a member, and detects truncated files, for all of these.
        return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(raw, "r"), self.compression))


def resolve(url: str) -> tuple[FileSystem, str]:
    """The file system of a URL or absolute local path, and the path within it.

    Raises
    ------
    NotAllowed
        Files there may not be read.
    SourceUnreadable
        The URL's scheme is unknown, or the package for it is not installed.
    ExtraMissing
        The same for S3.
    """
    from fsspec import filesystem, url_to_fs

    check_source(url)
    if url.startswith(("/", "file://")):
        return filesystem("file"), os.path.normpath("/" + url.removeprefix("file://").lstrip("/"))
    require_file_system(url)
    try:
        fs, path = url_to_fs(url, **web_options(url))
    except DistopError:
        raise
    except Exception as error:  # each file system has its own errors
        missing = isinstance(error, ValueError | ImportError)
        raise SourceUnreadable(
            f"{url}: {error if missing else f'it cannot be opened: {error!r}'}",
            hint="install the fsspec package for it on every coordinator and executor"
            if missing
            else "name files by a complete path or URL",
            details={"field": "paths", "path": url},
        ) from None
    return fs, path.rstrip("/")


def find_files(
    paths: list[str], *, most: int = MAX_PATHS, clock: Callable[[], float] = time.monotonic
) -> FoundSource:
    """List the files of all paths: files themselves, folders recursively, and matches of globs.

    Skipped inside folders: names that begin with ``_`` or ``.`` (at any depth), and empty files.

    Parameters
    ----------
    most:
        Most paths after globs are replaced by their matches.

    Raises
    ------
    InvalidArgument
        A relative path, paths of several file systems, a file found twice.
    SourceUnreadable
        A path that does not exist or cannot be read; names it.
    SourceEmpty
        No path contains a non-empty file.
    ArgumentTooLarge
        More than :data:`MAX_FILES` files or ``most`` paths, or listing takes too long.
    """
    search = _Search(clock() + LISTING_SECONDS, clock)
    fs, roots = _expand(paths, most)
    folder = _common_folder(roots)
    files: dict[str, list[SourceFile]] = {}
    known: set[str] = set()
    for root in sorted(roots):
        entries = sorted(search.below(fs, root), key=lambda info: str(info["name"]))
        for info in entries:
            if info["name"] in known:
                raise invalid("paths", f"{info['name']} is named twice")
            known.add(info["name"])
        files[_below(folder, root)] = [source_file(folder, info) for info in entries]
    if not known:
        empty = " and ".join(paths[:3]) + (" …" if len(paths) > 3 else "")
        raise SourceEmpty(
            f"there is no file to ingest in {empty}",
            hint="empty files, and names in folders that begin with '_' or '.', are skipped",
            details={"field": "paths"},
        )
    return FoundSource(fs.unstrip_protocol(folder).removesuffix("/"), files)


@dataclass
class _Search:
    """Lists folders within limits."""

    deadline: float
    clock: Callable[[], float]
    files: int = 0

    def below(self, fs: FileSystem, root: str) -> Iterator[dict[str, Any]]:
        """The state of each file at or below ``root``."""
        if is_local(fs):
            check_source(root)  # a glob may have matched a link
        info = _tried(root, fs.info, root)
        if info["type"] != "directory":
            if info["type"] != "file":
                raise _unreadable(root, "it is neither a file nor a folder")
            yield from self._checked(fs, {**info, "name": root})
            return
        folders = [(root, 0)]
        while folders:
            self._check_time()  # of folders without files, too, there may be very many
            folder, depth = folders.pop()
            if depth > MAX_DEPTH:
                raise invalid(
                    "paths",
                    f"{folder} is nested deeper than {MAX_DEPTH} folders",
                    "is there a loop of links?",
                )
            for entry in self._listed(fs, folder):
                if entry["type"] == "directory":
                    folders.append((entry["name"], depth + 1))
                else:
                    yield from self._checked(fs, entry)

    def _listed(self, fs: FileSystem, folder: str) -> Iterator[dict[str, Any]]:
        for entry in _tried(folder, fs.ls, folder, True):
            name = entry["name"].rstrip("/")
            # Object stores list a folder's own marker among its content.
            if name == folder or posixpath.basename(name).startswith(("_", ".")):
                continue
            if entry.get("islink") or not name.startswith(folder):
                check_source(name)  # it leads elsewhere
            if entry.get("islink"):
                entry = _tried(name, fs.info, name)
            yield {**entry, "name": name}

    def _check_time(self) -> None:
        if self.clock() > self.deadline:
            raise ArgumentTooLarge(
                f"listing the files takes longer than {LISTING_SECONDS:.0f} s, after {self.files} files",
                hint="name fewer paths in one operation",
                details={"field": "paths"},
            )

    def _checked(self, fs: FileSystem, info: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._check_time()
        if info["type"] != "file" or not info["size"]:
            return
        _check_name(info["name"])
        self.files += 1
        if self.files > MAX_FILES:
            raise ArgumentTooLarge(
                f"there are more than {MAX_FILES} files",
                hint="name fewer paths in one operation",
                details={"field": "paths"},
            )
        if is_local(fs) and not os.access(info["name"], os.R_OK):
            raise _unreadable(info["name"], "permission denied")
        yield info


def is_local(fs: FileSystem) -> bool:
    return bool(getattr(fs, "local_file", False))


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _unreadable(path, "its name is not valid UTF-8") from None


def _expand(paths: list[str], most: int) -> tuple[FileSystem, list[str]]:
    """The one file system of all paths, and the paths within it with globs replaced by their matches."""
    file_system: FileSystem | None = None
    roots: list[str] = []
    for path in paths:
        fs, root = resolve(checked_url(path))
        if file_system is None:
            # A coordinator runs for long, and its cached listings may be stale.
            fs.invalidate_cache()
            file_system = fs
        elif fs is not file_system:
            raise invalid(
                "paths", f"{path} is on another file system than {paths[0]}", "start one operation for each"
            )
        if _MAGIC.intersection(root) and not _tried(root, fs.exists, root):
            roots.extend(_matches(fs, root))
        else:
            roots.append(root)
        if len(roots) > most:
            raise ArgumentTooLarge(
                f"there are more than {most} paths, and each would have a watermark of its own",
                hint="name the folders that contain them",
                details={"field": "paths"},
            )
    if file_system is None or not all(root.strip("/") for root in roots):
        raise invalid("paths", "a path does not name a file or folder")
    twice = next((root for root, times in Counter(roots).items() if times > 1), None)
    if twice is not None:
        raise invalid("paths", f"{twice} is named twice")
    return file_system, roots


def checked_url(path: str) -> str:
    """A caller's path or URL; raises :class:`~distop.errors.InvalidArgument` if no job could open it."""
    if path.startswith("/"):
        return path
    refuse_password(path, "paths")
    if "://" not in path:
        raise invalid(
            "paths",
            f"{path!r} is a relative path, and jobs run in other folders",
            f"write {os.path.abspath(os.path.expanduser(path))!r}",
        )
    if "::" in path:
        raise invalid("paths", f"{path!r} is a chain of file systems, which is not supported")
    return path


def _matches(fs: FileSystem, pattern: str) -> list[str]:
    if "**" in pattern:
        raise invalid("paths", f"'**' in {pattern!r} is not supported", "folders are read recursively")
    names = _tried(pattern, fs.glob, pattern)
    matched = [name for name in names if not posixpath.basename(name).startswith(("_", "."))]
    if not matched:
        raise SourceEmpty(f"nothing matches {pattern}", details={"field": "paths", "path": pattern})
    return matched


def _common_folder(roots: list[str]) -> str:
    folder = posixpath.commonpath([posixpath.dirname(root) for root in roots])
    if not folder:
        raise invalid("paths", f"no folder contains {' and '.join(roots[:3])}", "name folders of one bucket")
    return folder


def _below(folder: str, path: str) -> str:
    return path.removeprefix(folder).lstrip("/")


def source_file(folder: str, info: dict[str, Any]) -> SourceFile:
    return SourceFile(_below(folder, info["name"]), int(info["size"]), _version(info), modified(info))


def _version(info: dict[str, Any]) -> int | str:
    if tag := entity_tag(info):
        return tag
    at = modified(info)
    return (at - _EPOCH) // timedelta(microseconds=1) if at else 0


def _tried(path: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of one call of a file system, whose errors can be of any class."""
    try:
        return call(*arguments)
    except FileNotFoundError:
        raise _unreadable(path, "it does not exist") from None
    except Exception as error:
        raise _unreadable(path, str(error) or type(error).__name__) from error


def _unreadable(path: str, reason: str) -> SourceUnreadable:
    return SourceUnreadable(f"{path} cannot be read: {reason}", details={"field": "paths", "path": path})


def utf_8(text: bytes, encoding: str) -> bytes:
    """The same text. What the encoding does not have becomes bytes that are not UTF-8: its rows are bad."""
    return text.decode(encoding, "surrogateescape").encode("utf-8", "surrogateescape")


def as_utf_8(source: BinaryIO, encoding: str) -> BinaryIO:
    """The same, as a stream; damaged text of UTF-16 or UTF-32 raises ``UnicodeDecodeError``."""
    return cast(BinaryIO, io.BufferedReader(_Recoded(source, encoding), CHUNK_BYTES))


class _Recoded(io.RawIOBase):
    def __init__(self, source: BinaryIO, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
        self._rest = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        while not self._rest and not self._ended:
            data = self._source.read(CHUNK_BYTES)
            self._ended = not data
            text = self._decoder.decode(data, final=self._ended)
            self._rest = memoryview(text.encode("utf-8", "surrogateescape"))
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        self._source.close()
        super().close()


def marker_versions(urls: Collection[str]) -> dict[str, str]:
    """The files that mark a source as complete, and their present versions.

    Unlike files of data they may be empty.

    Raises :class:`~distop.errors.SourceIncomplete` if one does not exist.
    """
    if len(urls) > MAX_PATHS:
        raise invalid("markers", f"there are more than {MAX_PATHS} markers", "start several operations")
    versions = {}
    for url in urls:
        fs, path = resolve(checked_url(url))
        fs.invalidate_cache()
        try:
            info = fs.info(path)
        except FileNotFoundError:
            raise _incomplete(url, "does not exist") from None
        versions[url] = version(info)
    return versions


def check_markers(versions: Mapping[str, str]) -> None:
    """Check that no marker was removed or written again since: then files may have been, too.

    Raises :class:`~distop.errors.SourceIncomplete`.
    """
    for url, present in marker_versions(versions).items():
        if present != versions[url]:
            raise _incomplete(url, "was written again while the files were read")


@contextmanager
def while_complete(markers: Mapping[str, str]) -> Iterator[None]:
    """Read files of a source whose markers had these versions before, and have them still at the end.

    An error is only the source's own if they do: half-written files are bad in many ways. Raises
    :class:`~distop.errors.SourceIncomplete` in place of it.
    """
    try:
        yield
    except (SourceIncomplete, Cancelled):
        raise
    except Exception:
        check_markers(markers)
        raise
    check_markers(markers)


def _incomplete(marker: str, why: str) -> SourceIncomplete:
    return SourceIncomplete(f"{marker} {why}", details={"field": "markers", "path": marker})
