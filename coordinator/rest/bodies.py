"""The bodies of requests, as models whose validation errors say what is wrong.

Updates and requirements are pyiceberg's models: one that it does not know is refused.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from pyiceberg.view.metadata import ViewVersion

from distop.catalog.view_metadata import ViewRequirement, ViewUpdate


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
