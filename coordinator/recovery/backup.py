"""A backup: etcd's own snapshot in a file, with a manifest of its content, and the check of both.

During the backup etcd contains a mark, and so does the snapshot. By the mark every process recognises a
restored etcd, see ``installation.py``.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import aclosing, suppress
from pathlib import Path
from typing import IO

from distop import errors
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.health import member_status
from distop.metastore.etcd.txn import DeleteRange, Get, Put, Txn, unchanged
from distop.metastore.etcd.update import settle
from distop.metastore.members.installation import BACKUP_LIMIT_S, was_restored
from distop.metastore.records.member import BackupRecord
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import Record, decode, encode
from distop.metastore.tables.audit import audit_put, prune_softly
from distop.proto.identity import own_version
from distop.proto.json_text import to_json

_HASH_BYTES = 32
"""A snapshot ends with the SHA-256 of the rest."""


class BackupDamaged(errors.CorruptRecord):
    """A file of a backup is not what was written."""

    code = "BACKUP_DAMAGED"
    default_hint = "restore an older one; do not use this"


class BackupManifest(Record, kw_only=True):
    """``FILE.json``: what the snapshot in ``FILE`` holds."""

    bytes: int
    sha256: str
    """SHA-256 of the database, which is all but the last 32 bytes of the file."""
    prefix: str
    """Prefix of the installation's keys; the snapshot may contain others, too."""
    revision: int
    """The snapshot holds everything up to it, and perhaps more."""
    cluster_id: str
    etcd: str = ""
    """Version of the member that sent it; empty: unknown."""
    distop: str
    at: float
    """When it began; seconds since the Unix epoch."""
    tables: int
    operations: int
    """Operations that had not ended."""


def manifest_of(file: Path) -> Path:
    """The path of the manifest."""
    return file.with_name(f"{file.name}.json")


async def back_up(
    client: EtcdClient, file: Path, *, by: str, limit_s: float = BACKUP_LIMIT_S
) -> BackupManifest:
    """Write a snapshot of etcd to a new file, and its manifest next to it.

    Both are written atomically, the manifest last. Only a crash leaves a file that ends with ``.part``, and
    the mark in etcd, which the next backup replaces and the next process removes.

    Raises
    ------
    AlreadyExists
        The file exists.
    EtcdUnavailable, EtcdDenied
        If etcd has users only ``root`` may read a snapshot.
    BackupDamaged
        The received data is not what was sent.
    Conflict
        Another backup was made at the same time.
    """
    _check_free(file)
    space, at, part = client.keyspace, time.time(), file.with_name(f"{file.name}.part")
    mark = Put(space.backup, encode(BackupRecord(at=at, by=by)))
    argument = to_json({"file": errors.encodable(file.name)}, "file")
    entry = audit_put(space, "backup", by=by, target=space.name, argument=argument, at=at)
    markers = await client.get_range(space.backup, b"")
    if any(was_restored(kv, markers.revision) for kv in markers.kvs):
        raise errors.InvalidArgument(
            "etcd was restored from a backup, and is not repaired yet",
            hint="first: distop cluster doctor --after-restore --fix",
        )
    marked = await settle(client, Txn(then=(mark, entry)))
    try:
        member = await member_status(client)
        counts = await client.read_at_once(
            [Get(start, prefix_end(start), keys_only=True, limit=1) for start in (space.tables, space.active)]
        )
        hashed = await _write(client, part, limit_s)
        if (await client.get(space.backup)).mod_revision != marked.revision:
            os.unlink(part)
            raise errors.Conflict("another backup was made at the same time: it may have removed the mark")
        _put_in_place(part, file)
        manifest = BackupManifest(
            bytes=hashed.size,
            sha256=hashed.sha256,
            prefix=space.name,
            revision=marked.revision,
            cluster_id=member.cluster_id,
            etcd=member.version,
            distop=own_version(),
            at=at,
            tables=counts.counts[0],
            operations=counts.counts[1],
        )
        _write_manifest(manifest_of(file), manifest)
    finally:
        with suppress(errors.DistopError):  # etcd may be unreachable; the mark is harmless
            current = await client.get(space.backup)
            if current.mod_revision == marked.revision:
                await settle(client, Txn((unchanged(current),), (DeleteRange(space.backup),)))
    await prune_softly(client, space.audit_prefix)
    return manifest


async def _write(client: EtcdClient, part: Path, limit_s: float) -> _Hashed:
    hashed = _Hashed()
    try:
        with _opened(part) as stream:
            async with aclosing(client.snapshot(limit_s)) as pieces:
                async for piece in pieces:
                    hashed.add(piece)
                    stream.write(piece)
            _sync(stream)
        if not hashed.whole:
            raise BackupDamaged("the received snapshot is incomplete, or was changed in transit")
    except BaseException as error:
        with suppress(OSError):
            os.unlink(part)  # the disk may be full of it
        if isinstance(error, OSError):
            raise errors.InvalidArgument(
                f"{part} cannot be written: {error}", details={"field": "file"}
            ) from error
        raise
    return hashed


def _check_free(file: Path) -> None:
    for path in (file, manifest_of(file)):
        if path.exists():
            raise errors.AlreadyExists(f"{path} exists already", details={"field": "file"})


def _opened(part: Path) -> IO[bytes]:
    part.unlink(missing_ok=True)
    # A reader of the file sees everything in etcd.
    return os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


class _Hashed:
    """Size and digest of a snapshot, whose last bytes are the digest of the rest."""

    def __init__(self) -> None:
        self.size, self._end, self._digest = 0, b"", hashlib.sha256()

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        both = self._end + piece
        self._digest.update(both[:-_HASH_BYTES])
        self._end = both[-_HASH_BYTES:]

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def whole(self) -> bool:
        return self._digest.digest() == self._end


def _write_manifest(file: Path, manifest: BackupManifest) -> None:
    part = file.with_name(f"{file.name}.part")
    with part.open("wb") as stream:
        stream.write(encode(manifest))
        _sync(stream)
    _put_in_place(part, file)


def _sync(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _put_in_place(part: Path, file: Path) -> None:
    os.replace(part, file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check(file: Path) -> BackupManifest:
    """Check that a backup is unchanged. Blocks.

    Raises :class:`~distop.errors.NotFound`, and :class:`BackupDamaged`.
    """
    try:
        manifest = decode(manifest_of(file).read_bytes(), BackupManifest, manifest_of(file).name.encode())
        hashed = _Hashed()
        with file.open("rb") as stream:
            while piece := stream.read(1 << 20):
                hashed.add(piece)
    except FileNotFoundError as error:
        raise errors.NotFound(f"{error.filename} does not exist", details={"field": "file"}) from error
    except OSError as error:
        raise errors.InvalidArgument(f"{file} cannot be read: {error}", details={"field": "file"}) from error
    if (hashed.size, hashed.sha256) != (manifest.bytes, manifest.sha256) or not hashed.whole:
        raise BackupDamaged(f"{file} is not the snapshot that {manifest_of(file)} describes")
    return manifest
