"""Iceberg namespaces in etcd (``_namespaces.<name>`` and its properties), and the names of tables in them.

A namespace exists if it was created, or if a table or another namespace is in it. Its name is its parts
joined by dots; the namespace ``default`` holds the tables whose name has no dot, and always exists.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.typedef import Identifier

from distop.commit.catalog.pointers import Pointers
from distop.errors import Conflict, OutcomeUnknown
from distop.metastore.etcd.txn import Delete, KeyValue, Op, Put, Txn, unchanged
from distop.metastore.records.keyspace import check_name, escape, unescape
from distop.metastore.records.model import NamespaceRecord, decode, encode

DEFAULT = "default"

MAX_TRIES = 10
"""How often a change that lost a race is tried again."""


def table_name(identifier: str | Identifier) -> str:
    """The distop table that an identifier names: namespaces and name joined by dots, ``default`` left out."""
    parts = tuple(identifier.split(".")) if isinstance(identifier, str) else tuple(identifier)
    if len(parts) > 1 and parts[0] == DEFAULT:
        parts = parts[1:]
    return check_name(".".join(parts), "table")


def table_identifier(name: str) -> Identifier:
    """The identifier of a distop table; the inverse of :func:`table_name`."""
    parts = tuple(name.split("."))
    return (DEFAULT, *parts) if len(parts) == 1 or parts[0] == DEFAULT else parts


class Namespaces:
    """The namespaces of one installation."""

    def __init__(self, pointers: Pointers) -> None:
        self._pointers = pointers
        self._etcd = pointers.etcd
        self._keyspace = pointers.keyspace

    def _read(self, name: str) -> KeyValue:
        return self._etcd.get(self._keyspace.namespace(name))

    def exists(self, name: str) -> bool:
        """Whether it was created, or something is in it."""
        return name == DEFAULT or self._read(name).exists or not self.is_empty(name)

    def is_empty(self, name: str) -> bool:
        """Whether neither a table nor a namespace is in it."""
        return not any(self._pointers.tables(name)) and not self.below(name)

    def below(self, name: str = "") -> list[str]:
        """All created namespaces inside one, at any depth; all there are, if none is given."""
        prefix = self._keyspace.namespaces
        start = prefix + (escape(f"{name}.").encode() if name else b"")
        found = self._etcd.scan(start, keys_only=True).kvs
        return [unescape(kv.key[len(prefix) :].decode()) for kv in found]

    def properties(self, name: str) -> dict[str, str]:
        """Its properties; none if it was not created."""
        return _properties(self._read(name))

    def create(self, name: str, properties: dict[str, str]) -> bool:
        """Create it; ``False`` if it was created before."""
        key = self._keyspace.namespace(check_name(name, "namespace"))
        put = Put(key, encode(NamespaceRecord(properties=properties)))
        return self._changed(KeyValue.missing(key), put)

    def drop(self, name: str) -> None:
        """Forget it and its properties."""
        for _ in range(MAX_TRIES):
            kv = self._read(name)
            if not kv.exists or self._changed(kv, Delete(kv.key)):
                return
        raise _busy(name)

    def update(self, name: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change its properties. ``change`` may be called again when another change comes between."""
        for _ in range(MAX_TRIES):
            kv = self._read(name)
            record = NamespaceRecord(properties=change(_properties(kv)))
            if self._changed(kv, Put(kv.key, encode(record))):
                return
        raise _busy(name)

    def _changed(self, base: KeyValue, op: Op) -> bool:
        """Do ``op`` if the namespace is still as read; whether it was done."""
        try:
            return self._etcd.txn(Txn((unchanged(base),), (op,))).succeeded
        except OutcomeUnknown:
            # Done or not: the value tells, and who wrote the same value does not matter.
            wanted = op.value if isinstance(op, Put) else b""
            if self._etcd.get(base.key).value == wanted:
                return True
            raise


def _properties(kv: KeyValue) -> dict[str, str]:
    return dict(decode(kv.value, NamespaceRecord, kv.key).properties) if kv.exists else {}


def _busy(name: str) -> Conflict:
    return Conflict(f"namespace {name!r} is being changed by others all the time")
