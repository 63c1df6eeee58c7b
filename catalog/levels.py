"""The part of the pyiceberg catalog that concerns namespaces, of any number of levels."""

from __future__ import annotations

from pyiceberg.catalog import LOCATION, PropertiesUpdateSummary
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from distop.catalog.errors import for_pyiceberg
from distop.catalog.namespaces import (
    DEFAULT,
    Namespaces,
    namespace_identifier,
    namespace_name,
    table_identifier,
    table_name,
)
from distop.catalog.places import place_of_namespace
from distop.catalog.pointers import Pointers
from distop.lake.pyiceberg_private import StagingCatalog


@for_pyiceberg
class NamespaceCatalog(StagingCatalog):
    """Namespaces in etcd."""

    _pointers: Pointers
    _namespaces: Namespaces

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Raises ``NamespaceAlreadyExistsError``."""
        name = namespace_name(namespace)
        if not self._namespaces.create(name, dict(properties)):
            raise NamespaceAlreadyExistsError(f"Namespace {name} already exists")

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """Raises ``NoSuchNamespaceError`` or ``NamespaceNotEmptyError``."""
        name = self._existing(namespace)
        if not self._namespaces.is_empty(name):
            raise NamespaceNotEmptyError(f"Namespace {name} is not empty")
        if not self._namespaces.drop(name) and name == DEFAULT:
            raise NamespaceNotEmptyError(f"Namespace {name} is always there")

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """The namespaces right below one; the top-level ones if none is given."""
        below = self._existing(namespace) if namespace else ""
        parent = namespace_identifier(below) if below else ()
        known = {(DEFAULT,), *(namespace_identifier(name) for name in self._namespaces.below(below))}
        known |= {table_identifier(name)[:-1] for name in self._pointers.names(below)}
        depth = len(parent) + 1
        return sorted({path[:depth] for path in known if len(path) >= depth and path[: depth - 1] == parent})

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        """Whether it was created, or is not empty."""
        try:
            return self._namespaces.exists(namespace_name(namespace))
        except NoSuchNamespaceError:
            return False

    def namespace_with_place(self, namespace: str | Identifier) -> Properties:
        """Its properties, and as ``location`` where its tables are made. Raises ``NoSuchNamespaceError``."""
        name = self._existing(namespace)
        own = self._namespaces.properties(name)
        place = place_of_namespace(name, self.properties, own)
        return {**own, LOCATION: place} if place else own

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """Raises ``NoSuchNamespaceError``."""
        return self._namespaces.properties(self._existing(namespace))

    def update_namespace_properties(
        self,
        namespace: str | Identifier,
        removals: set[str] | None = None,
        updates: Properties = EMPTY_DICT,
    ) -> PropertiesUpdateSummary:
        """Raises ``NoSuchNamespaceError``, or ``ValueError`` if a property is both removed and set."""
        name = self._existing(namespace)
        summaries: list[PropertiesUpdateSummary] = []

        def change(properties: dict[str, str]) -> dict[str, str]:
            summary, changed = self.changed_properties(properties, removals, updates)
            summaries.append(summary)
            return changed

        self._namespaces.update(name, change)
        return summaries[-1]

    def _existing(self, namespace: str | Identifier) -> str:
        return self._there(namespace_name(namespace))

    def _check_namespace_of(self, identifier: str | Identifier) -> None:
        self._existing(table_identifier(table_name(identifier))[:-1])

    def _there(self, name: str) -> str:
        if not self._namespaces.exists(name):
            raise NoSuchNamespaceError(f"Namespace does not exist: {name}")
        return name

    @staticmethod
    def identifier_to_database_and_table(
        identifier: str | Identifier,
        err: type[ValueError] | type[NoSuchTableError] | type[NoSuchNamespaceError] = ValueError,
    ) -> tuple[str, str]:
        """``(namespace, table)`` of an identifier; the namespace by its name, see :func:`namespace_name`."""
        full = table_identifier(table_name(identifier))
        return namespace_name(full[:-1]), full[-1]
