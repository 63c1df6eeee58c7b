"""The endpoints: each with its handler, the model of its body, and the tables that a request names.

Paths are split before they are decoded: a slash in a name is written ``%2F``, and is no separator. Iceberg's
Java client writes a blank as a plus sign, others as ``%20``: both are read, and a plus sign is ``%2B``.

Validation errors of a body say what is wrong. Updates and requirements are pyiceberg's models: one that it
does not know is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote_plus

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from pyiceberg.view.metadata import ViewVersion

from distop.catalog.catalog import EtcdCatalog
from distop.catalog.view_metadata import ViewRequirement, ViewUpdate
from distop.coordinator.rest import namespaces, tables
from distop.coordinator.rest.calls import Reply, RestCall
from distop.operations.api import Role


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


class Body(BaseModel):
    """Names have hyphens in JSON. Unknown fields are ignored."""

    model_config = ConfigDict(alias_generator=_hyphens, frozen=True)


class NewNamespace(Body):
    namespace: tuple[str, ...] = Field(min_length=1)
    properties: dict[str, str] | None = None


class NamespaceChange(Body):
    removals: set[str] | None = None
    updates: dict[str, str] | None = None


class NewTable(Body):
    name: str
    columns: Schema = Field(alias="schema")
    location: str | None = None
    partition_spec: PartitionSpec | None = None
    write_order: SortOrder | None = None
    stage_create: bool = False
    properties: dict[str, str] | None = None


class Registration(Body):
    name: str
    metadata_location: str
    overwrite: bool = False


class NewView(Body):
    name: str
    columns: Schema = Field(alias="schema")
    view_version: ViewVersion
    location: str | None = None
    properties: dict[str, str] | None = None


class Named(Body):
    """A table or a view in a body."""

    namespace: tuple[str, ...] = Field(min_length=1)
    name: str

    @property
    def identifier(self) -> Identifier:
        return (*self.namespace, self.name)


class Renaming(Body):
    source: Named
    destination: Named


class Change(Body):
    """A commit to one table."""

    identifier: Named | None = None
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


class ViewChange(Body):
    """A commit to one view."""

    identifier: Named | None = None
    requirements: tuple[ViewRequirement, ...] = ()
    updates: tuple[ViewUpdate, ...]


class NamedChange(Change):
    """The commit to one of several tables."""

    identifier: Named


class Transaction(Body):
    """A commit to several tables."""

    table_changes: tuple[NamedChange, ...]


class Report(Body):
    """Metrics of a scan or commit: ignored."""


class RouteEffect(Enum):
    """What a request does to the tables it names; the value is the role that it needs."""

    READ = Role.READER
    CHANGE = Role.WRITER
    """Creates, commits to or renames tables, or changes a namespace."""
    DROP = Role.ADMIN


def _of_path(call: RestCall) -> tuple[Identifier, ...]:
    return (call.table,)


def _of_view(call: RestCall) -> tuple[Identifier, ...]:
    return (call.view,)


def _of_body(call: RestCall) -> tuple[Identifier, ...]:
    return (call.named,)


def _none(_: RestCall) -> tuple[Identifier, ...]:
    return ()


def _renamed(call: RestCall) -> tuple[Identifier, ...]:
    return call.body.source.identifier, call.body.destination.identifier


def _all(call: RestCall) -> tuple[Identifier, ...]:
    return tuple(change.identifier.identifier for change in call.body.table_changes)


@dataclass(frozen=True)
class Route:
    """An endpoint of the protocol, and how its requests are checked and handled."""

    method: str
    path: str
    handle: Callable[[EtcdCatalog, RestCall], Reply]
    """The handler; blocking."""
    effect: RouteEffect = RouteEffect.READ
    body: type[Body] | None = None
    tables: Callable[[RestCall], tuple[Identifier, ...]] = _none
    """The tables and views that it reads or changes."""
    shows: bool = False
    """Whether it describes namespaces, or lists: what the caller may not see is omitted."""

    @property
    def makes(self) -> bool:
        """Whether the table or view need not exist."""
        return self.tables is _of_body

    @property
    def of_views(self) -> bool:
        return "view" in self.path

    @property
    def changes(self) -> bool:
        return self.effect is not RouteEffect.READ

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


_ROOT = "/v1/{prefix}"
_SPACES, _SPACE = f"{_ROOT}/namespaces", f"{_ROOT}/namespaces/{{namespace}}"
_VIEWS, _VIEW = f"{_SPACE}/views", f"{_SPACE}/views/{{view}}"
_TABLES, _TABLE = f"{_SPACE}/tables", f"{_SPACE}/tables/{{table}}"

ROUTES = (
    Route("GET", _SPACES, namespaces.find, shows=True),
    Route("POST", _SPACES, namespaces.create, RouteEffect.CHANGE, NewNamespace),
    Route("GET", _SPACE, namespaces.load, shows=True),
    Route("HEAD", _SPACE, namespaces.exists, shows=True),
    Route("POST", f"{_SPACE}/properties", namespaces.change, RouteEffect.CHANGE, NamespaceChange),
    Route("DELETE", _SPACE, namespaces.drop, RouteEffect.DROP),
    Route("GET", _TABLES, tables.find, shows=True),
    Route("POST", _TABLES, tables.create, RouteEffect.CHANGE, NewTable, _of_body),
    Route("POST", f"{_SPACE}/register", tables.register, RouteEffect.CHANGE, Registration, _of_body),
    Route("GET", _TABLE, tables.load, tables=_of_path),
    Route("HEAD", _TABLE, tables.exists, tables=_of_path),
    Route("POST", _TABLE, tables.commit, RouteEffect.CHANGE, Change, _of_path),
    Route("DELETE", _TABLE, tables.drop, RouteEffect.DROP, None, _of_path),
    Route("POST", f"{_TABLE}/metrics", tables.report, RouteEffect.READ, Report, _of_path),
    Route("POST", f"{_ROOT}/transactions/commit", tables.commit_all, RouteEffect.CHANGE, Transaction, _all),
    Route("POST", f"{_ROOT}/tables/rename", tables.rename, RouteEffect.CHANGE, Renaming, _renamed),
    Route("GET", _VIEWS, tables.find_views, shows=True),
    Route("POST", _VIEWS, tables.create_view, RouteEffect.CHANGE, NewView, _of_body),
    Route(
        "POST", f"{_SPACE}/register-view", tables.register_view, RouteEffect.CHANGE, Registration, _of_body
    ),
    Route("GET", _VIEW, tables.load_view, tables=_of_view),
    Route("HEAD", _VIEW, tables.exists_view, tables=_of_view),
    Route("POST", _VIEW, tables.commit_view, RouteEffect.CHANGE, ViewChange, _of_view),
    Route("DELETE", _VIEW, tables.drop_view, RouteEffect.DROP, None, _of_view),
    Route("POST", f"{_ROOT}/views/rename", tables.rename_view, RouteEffect.CHANGE, Renaming, _renamed),
)


def match_path(path: bytes, prefix: str) -> tuple[dict[str, Route], Mapping[str, str]]:
    """The routes of a raw path by method, and the parts that it names. The prefix may be missing: ClickHouse
    and others leave it out of some paths."""
    given = path.decode("latin-1").rstrip("/").split("/")
    for named in (given, [*given[:2], quote(prefix, safe=""), *given[2:]]):
        for shape, routes in _BY_SHAPE.items():
            if (parts := _matched(shape, named)) is not None and parts["prefix"] == prefix:
                return routes, parts
    return {}, {}


def _matched(shape: tuple[str, ...], given: list[str]) -> dict[str, str] | None:
    if len(shape) != len(given):
        return None
    parts = {}
    for wanted, part in zip(shape, given, strict=True):
        if wanted.startswith("{"):
            parts[wanted[1:-1]] = unquote_plus(part, errors="strict")
        elif wanted != part:
            return None
    return parts


def _by_shape() -> Iterator[tuple[tuple[str, ...], dict[str, Route]]]:
    for path in dict.fromkeys(route.path for route in ROUTES):
        yield tuple(path.split("/")), {route.method: route for route in ROUTES if route.path == path}


_BY_SHAPE = dict(_by_shape())
