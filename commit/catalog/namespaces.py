"""Iceberg namespaces in etcd (``_namespaces.<name>`` and its properties), and the names of tables in them.

A namespace exists if it was created, or if a table or another namespace is in it. Its name is its parts
joined by dots; the namespace ``default`` holds the tables whose name has no dot, and always exists.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.typedef import Identifier

from distop.commit.catalog.pointers import Pointers
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.keyspace import check_name, escape, unescape
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import NamespaceRecord

DEFAULT = "default"


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
        check_name(name, "namespace")
        value = encode(NamespaceRecord(properties=properties))
        return self._change(name, lambda kv: None if kv.exists else Put(kv.key, value))

    def drop(self, name: str) -> None:
        """Forget it and its properties."""
        self._change(name, lambda kv: Delete(kv.key) if kv.exists else None)

    def update(self, name: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change its properties. ``change`` may be called again when another change comes between."""

        def changed(kv: KeyValue) -> Put:
            return Put(kv.key, encode(NamespaceRecord(properties=change(_properties(kv)))))

        self._change(name, changed)

    def _change(self, name: str, wanted: Callable[[KeyValue], Put | Delete | None]) -> bool:
        """Make of a namespace what is wanted; whether anything was to be done."""
        key = self._keyspace.namespace(name)
        standing = b""

        async def decide(read: TxnResult) -> tuple[Txn | None, bool]:
            nonlocal standing
            kv = read.one(0, key)
            if (op := wanted(kv)) is None:
                return None, False
            standing = op.value if isinstance(op, Put) else b""
            return Txn((unchanged(kv),), (op,)), True

        def is_ours(read: TxnResult) -> bool | None:
            # Who wrote the same value does not matter.
            return True if read.one(0, key).value == standing else None

        what = f"namespace {name!r}"
        return self._etcd.run(lambda client: update(client, (Get(key),), decide, is_ours, what=what))[0]


def _properties(kv: KeyValue) -> dict[str, str]:
    return dict(decode(kv.value, NamespaceRecord, kv.key).properties) if kv.exists else {}
