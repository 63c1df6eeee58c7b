"""Iceberg namespaces in etcd (``_namespaces.<name>`` and its properties), and the names of tables in them.

A namespace exists if it was created, or if a table, a view or another namespace is in it. Its name is its
parts joined by dots; the namespace ``default`` holds the tables whose name has no dot, and always exists.
Creating one that exists only in this way sets its properties.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.typedef import Identifier

from distop.catalog.errors import both
from distop.catalog.pointers import Pointers
from distop.errors import InvalidArgument, InvalidName
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.update import update
from distop.metastore.records.names import (
    DEFAULT_NAMESPACE,
    check_name,
    check_new_name,
    check_table_name,
    escape,
)
from distop.metastore.records.record import convert, decode, encode
from distop.metastore.records.table import NamespaceRecord

DEFAULT = DEFAULT_NAMESPACE

# Parts are separated by dots: a dot in a part is written %2E. A literal %2E has its percent sign
# written %25; every other percent sign is unchanged, so that all names without %2E are literal.
_TO_ESCAPE = re.compile(r"\.|%(?=(?:25)*2E)")
_ESCAPE = re.compile(r"%(2E|25(?=(?:25)*2E))")


def table_name(identifier: str | Identifier) -> str:
    """The name of a table in distop: its namespaces and name, joined by dots, ``default`` left out.

    Raises :class:`~distop.errors.InvalidName`, which is a ``NoSuchTableError``, if that is invalid.
    """
    try:
        return check_table_name(_joined(identifier, "table"))
    except InvalidName as error:
        raise both(error, NoSuchTableError) from None


def table_identifier(name: str) -> Identifier:
    """The identifier of a table; the inverse of :func:`table_name`."""
    parts = namespace_identifier(name)
    return (DEFAULT, *parts) if len(parts) == 1 else parts


def no_such_table(name: str) -> NoSuchTableError:
    """The error of pyiceberg for a missing table."""
    return NoSuchTableError(f"Table does not exist: {'.'.join(table_identifier(name))}")


def already_exists(name: str, kind: str = "Table") -> TableAlreadyExistsError:
    """The error of pyiceberg for an existing table of this name; or for a view (``kind``), which has the name
    of the table."""
    full = ".".join(table_identifier(name))
    return TableAlreadyExistsError(
        f"Table {full} already exists" if kind == "Table" else f"{kind} with same name already exists: {full}"
    )


def view_name(identifier: str | Identifier) -> str:
    """The name of a view, which no table may have; as :func:`table_name`.

    Raises :class:`~distop.errors.InvalidName`, which is a ``NoSuchViewError``, if that is invalid.
    """
    try:
        return check_table_name(_joined(identifier, "view"))
    except InvalidName as error:
        raise both(error, NoSuchViewError) from None


def no_such_view(name: str) -> NoSuchViewError:
    """The error of pyiceberg for a missing view."""
    return NoSuchViewError(f"View does not exist: {'.'.join(table_identifier(name))}")


def view_exists(name: str, kind: str = "View") -> ViewAlreadyExistsError:
    """The error of pyiceberg for an existing view of this name; or for a table (``kind``)."""
    full = ".".join(table_identifier(name))
    return ViewAlreadyExistsError(
        f"View already exists: {full}" if kind == "View" else f"{kind} with same name already exists: {full}"
    )


def namespace_identifier(name: str) -> Identifier:
    """The parts of a namespace's name; the inverse of :func:`namespace_name`."""
    return tuple(
        _ESCAPE.sub(lambda match: "." if match[1] == "2E" else "%", part) for part in name.split(".")
    )


def namespace_name(namespace: str | Identifier) -> str:
    """The name of a namespace: its parts joined by dots.

    Raises :class:`~distop.errors.InvalidName`, which is a ``NoSuchNamespaceError``, if that is invalid.
    """
    try:
        return check_name(_joined(namespace, "namespace"), "namespace")
    except InvalidName as error:
        raise both(error, NoSuchNamespaceError) from None


def _joined(identifier: str | Identifier, kind: str) -> str:
    parts: tuple[Any, ...] = Catalog.identifier_to_tuple(identifier)
    if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
        raise InvalidName(f"{kind} {identifier!r} has an empty part", details={"field": kind})
    return ".".join(_TO_ESCAPE.sub(lambda match: "%2E" if match[0] == "." else "%25", part) for part in parts)


class Namespaces:
    """The namespaces of one installation."""

    def __init__(self, pointers: Pointers) -> None:
        self._pointers = pointers
        self._etcd = pointers.etcd
        self._keyspace = pointers.keyspace

    def _read(self, name: str) -> etcd.KeyValue:
        return self._etcd.get(self._keyspace.namespace(name))

    def exists(self, name: str) -> bool:
        """Whether it was created, or is not empty."""
        return name == DEFAULT or self._read(name).exists or not self.is_empty(name)

    def is_empty(self, name: str) -> bool:
        """Whether neither a table, a view nor a namespace is in it."""
        if name == DEFAULT and any("." not in other for other in self._pointers.names()):
            return False
        return not any(self._pointers.names(name)) and not self.below(name)

    def below(self, name: str = "") -> list[str]:
        """All created namespaces inside one, at any depth; by default all of them."""
        prefix = self._keyspace.namespaces
        start = prefix + (escape(f"{name}.").encode() if name else b"")
        keys = self._etcd.scan(start, keys_only=True).kvs
        return [name for name, _ in etcd.named(keys, partial(self._keyspace.name_in, prefix))]

    def properties(self, name: str) -> dict[str, str]:
        """Its properties; none if it was not created."""
        return _properties(self._read(name))

    def create(self, name: str, properties: dict[str, str]) -> bool:
        """Create it; ``False`` if it was created before. Its content makes no difference.

        Raises :class:`~distop.errors.InvalidName` if no table could be created in it.
        """
        check_new_name(name, "namespace")
        value = _encoded(properties)
        return self._change("create", name, lambda kv: None if kv.exists else etcd.Put(kv.key, value))

    def drop(self, name: str) -> bool:
        """Remove it and its properties; ``False`` if it was not created."""
        return self._change("drop", name, lambda kv: etcd.DeleteRange(kv.key) if kv.exists else None)

    def update(self, name: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change its properties. ``change`` may be called again when another change comes between."""

        def changed(kv: etcd.KeyValue) -> etcd.Put:
            return etcd.Put(kv.key, _encoded(change(_properties(kv))))

        self._change("alter", name, changed)

    def _change(
        self, action: str, name: str, wanted: Callable[[etcd.KeyValue], etcd.Put | etcd.DeleteRange | None]
    ) -> bool:
        """Bring a namespace into the requested state; returns whether anything was changed."""
        key = self._keyspace.namespace(name)
        existing = b""

        async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, bool]:
            nonlocal existing
            kv = read.single(0, key)
            if (op := wanted(kv)) is None:
                return None, False
            existing = op.value if isinstance(op, etcd.Put) else b""
            reached("namespace.before")
            return etcd.Txn(
                (etcd.unchanged(kv),), (op, *self._pointers.audit(f"{action}-namespace", name))
            ), True

        def is_own_write(read: etcd.TxnResult) -> bool | None:
            # It does not matter which caller wrote the same value.
            return True if read.single(0, key).value == existing else None

        subject, replied = f"namespace {name!r}", lambda: reached("namespace.after")
        return self._etcd.run(
            lambda client: update(
                client, (etcd.Get(key),), decide, is_own_write, subject=subject, replied=replied
            )
        )[0]


def _properties(kv: etcd.KeyValue) -> dict[str, str]:
    return dict(decode(kv.value, NamespaceRecord, kv.key).properties) if kv.exists else {}


def _encoded(properties: dict[str, str]) -> bytes:
    try:
        return encode(convert({"properties": properties}, NamespaceRecord))
    except msgspec.ValidationError as error:
        raise InvalidArgument(
            f"a property of a namespace is no string: {error}", details={"field": "properties"}
        ) from None
