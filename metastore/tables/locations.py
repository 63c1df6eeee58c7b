"""Claims to locations: each folder belongs to one table, and so does everything in it (checklist S2).

``_locations.<place>`` is written in the transaction that creates the table. That compares that there is no
claim to this place, to any place above it, or in the range of all places in it: of two concurrently created
tables that would share or nest folders, one wins. It costs a compare for each folder above, however many
tables there are. The claim is removed with the table, after its files.

Whether two tables share files is decided by comparing texts, in etcd. So a location has one canonical form:
without ``.``, ``..``, doubled slashes, and characters that some libraries read as an escape or the end of a
path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distop.errors import InvalidArgument, LocationInUse
from distop.metastore.etcd import txn as etcd
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.names import prefix_end, unreadable
from distop.metastore.records.record import encode, readable
from distop.metastore.records.table import LocationRecord, TableRecord

MAX_BYTES = 1024
"""Longest location, in UTF-8 bytes. S3 does not allow longer names of objects either."""

MAX_DEPTH = 60
"""Folders above a location; each is a compare of one transaction."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*(:[0-9]+)?|\[[0-9A-Fa-f:]+\](:[0-9]+)?")
_MISREAD = {"?": "the beginning of a query", "#": "the begin of a fragment", "%": "the begin of an escape"}
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
"""Schemes mapped to the one that reaches the same files."""


_PASSWORD = re.compile(r"(?<!github)://[^/?#@]*:[^/?#@]*@")
"""fsspec's URLs of GitHub have a repository in that place."""


def refuse_password(url: str, field: str) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for a URL with a password in it, without repeating it."""
    if _PASSWORD.search(url) and not url.startswith("/"):
        raise InvalidArgument(
            f"{field} holds a URL with a password, but is stored where operators can read it",
            hint="give the password to the process that opens it: in its environment, or fsspec's settings",
            details={"field": field},
        )


def canonical(text: str, field: str = "location") -> str:
    """The canonical form of a location: a URL without a trailing slash; ``file:///a/b`` for a local path.

    On a local disk doubled slashes and ``.`` are removed, which changes nothing. In an object store they
    would be parts of names, and are refused. ``..`` is refused: where it leads depends on links.

    Raises :class:`~distop.errors.InvalidArgument` with ``field`` if there is no such form.
    """

    def refused(why: str, hint: str = "for example /data/flights or s3://bucket/flights") -> InvalidArgument:
        return InvalidArgument(f"location {text!r} {why}", hint=hint, details={"field": field})

    refuse_password(text, field)
    _check_characters(text, refused)
    scheme, host, path = _split(text)
    if not _SCHEME.fullmatch(scheme):
        raise refused("is neither a URL nor an absolute path")
    if host and not _HOST.fullmatch(host):
        raise refused(f"has a host or bucket, {host!r}, that is invalid")
    parts = path.rstrip("/").split("/")
    if ".." in parts:
        raise refused("has '..' in it: where that leads depends on links", "write the resulting folder")
    if scheme == "file":
        if host not in ("", "localhost"):
            raise refused(f"names a host, {host!r}", "write file:///, and the path")
        host, parts = "", [part for part in parts if part not in ("", ".")]
    elif parts != [""] and ("" in parts or "." in parts):
        raise refused("has an empty or '.' part: it would mean another folder than it seems to")
    parts = [part for part in parts if part]
    if not parts and not host:
        raise refused("names no folder")
    if len(parts) > MAX_DEPTH:
        raise refused(f"has {len(parts)} folders in it, at most {MAX_DEPTH} are allowed", "use a shorter one")
    return "/".join((f"{scheme}://{host}", *parts))


def _check_characters(text: str, refused: Callable[..., InvalidArgument]) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise refused("is not valid unicode") from None
    if size > MAX_BYTES:
        raise refused(f"is {size} bytes long, at most {MAX_BYTES} are allowed", "use a shorter one")
    for letter in text:
        if letter in _MISREAD:
            raise refused(
                f"contains {letter!r}, which programs may take for {_MISREAD[letter]}", "leave it out"
            )
    if reason := unreadable(text):
        raise refused(reason, "write it without that")


def _split(text: str) -> tuple[str, str, str]:
    """Scheme, host and path; an empty scheme if it is neither a URL nor an absolute path."""
    if text.startswith("/"):
        return "file", "", text
    scheme, separator, rest = text.partition(":")
    scheme = scheme.lower()
    scheme = "file" if scheme == "local" else scheme
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        return scheme, host, path
    return (scheme, "", rest) if separator and scheme == "file" and rest.startswith("/") else ("", "", "")


def place_of(location: str) -> str:
    """The place of a canonical location: equal for two that lead to the same files."""
    scheme, _, rest = location.partition("://")
    host, slash, path = rest.partition("/")
    return f"{_SAME_STORE.get(scheme, scheme)}://{host.lower()}{slash}{path}"


def places_above(location: str) -> list[str]:
    """The places of the folders that contain a place, the outermost first."""
    scheme, _, rest = location.partition("://")
    host, *parts = rest.split("/")
    root = [f"{scheme}://{host}"]
    above = ["/".join(root + parts[:count]) for count in range(len(parts))]
    return above if host else above[1:]


@dataclass(frozen=True)
class LocationClaim:
    """The claim of one table.

    Parameters
    ----------
    location:
        In canonical form.
    uuid:
        Of the table.
    """

    keyspace: Keyspace
    location: str
    table: str
    uuid: str

    @classmethod
    def of(cls, keyspace: Keyspace, record: TableRecord) -> LocationClaim:
        """The claim of a table as it is recorded."""
        return cls(keyspace, record.location, record.name, record.uuid)

    @property
    def key(self) -> bytes:
        return self.keyspace.location(place_of(self.location))

    @property
    def put(self) -> etcd.Put:
        return etcd.Put(self.key, encode(LocationRecord(table=self.table, uuid=self.uuid)))

    @property
    def _above(self) -> list[bytes]:
        return [self.keyspace.location(folder) for folder in places_above(place_of(self.location))]

    @property
    def _inside(self) -> tuple[bytes, bytes]:
        start = self.key + b"/"
        return start, prefix_end(start)

    def free(self) -> tuple[etcd.Compare, ...]:
        """No table has claimed the place, one that contains it, or one in it."""
        return (
            etcd.absent(self.key),
            etcd.absent_range(*self._inside),
            *(etcd.absent(key) for key in self._above),
        )

    def reads(self) -> tuple[etcd.Get, ...]:
        """The keys and ranges to read before :meth:`check`."""
        return etcd.Get(self.key), etcd.Get(*self._inside, limit=1), *(etcd.Get(key) for key in self._above)

    def rivals(self, read: Sequence[list[etcd.KeyValue]]) -> list[etcd.KeyValue]:
        """The conflicting claims in the result of :meth:`reads`."""
        return [kv for kvs in read for kv in kvs if not (kv.key == self.key and self.is_mine(kv))]

    def check(self, read: Sequence[list[etcd.KeyValue]]) -> None:
        """Raises :class:`~distop.errors.LocationInUse` with the name of the conflicting table."""
        for kv in self.rivals(read):
            folder = kv.key[len(self.keyspace.locations) :].decode(errors="backslashreplace")
            other = owner_of(kv)
            name = repr(other.table) if other is not None else "that cannot be read"
            how = "is" if kv.key == self.key else "lies in" if kv.key < self.key else "has in it"
            raise LocationInUse(
                f"location {self.location} {how} the folder of table {name}",
                hint="give each table a folder of its own; if that table is being dropped, repeat the drop",
                details={"field": "location", "table": other.table if other else "", "claim": folder},
            )

    def is_mine(self, kv: etcd.KeyValue) -> bool:
        """Whether the record at :attr:`key` is the claim of this table."""
        other = owner_of(kv)
        return other is not None and (other.table, other.uuid) == (self.table, self.uuid)

    def given_up(self, existing: etcd.KeyValue) -> etcd.Txn:
        """The removal of the claim, if it is the one that was read; nothing if it is not this table's."""
        if not self.is_mine(existing):
            return etcd.Txn()
        return etcd.Txn((etcd.unchanged(existing),), (etcd.DeleteRange(self.key),))

    def passed_on(self, existing: etcd.KeyValue, to: LocationClaim) -> etcd.Txn:
        """The writes that replace this claim by another one, for a table that is renamed or moves: the new
        place may not contain the present one, or be in it."""
        if not self.is_mine(existing):
            return etcd.Txn(to.free(), (to.put,))
        if to.key == self.key:
            return etcd.Txn((etcd.unchanged(existing),), (to.put,))
        return etcd.Txn((etcd.unchanged(existing), *to.free()), (etcd.DeleteRange(self.key), to.put))


def owner_of(kv: etcd.KeyValue) -> LocationRecord | None:
    """The owner of a place; ``None`` if it has none, or the claim cannot be read."""
    return readable(kv.value, LocationRecord)
