"""Views for tests, as clients ask for them."""

from typing import Any

from pyiceberg.view.metadata import ViewVersion

from distop.catalog.view_metadata import AddViewVersionUpdate, SetCurrentViewVersionUpdate, ViewUpdate
from support.tables.catalogs import SCHEMA


def version(sql: str = "SELECT 1", *dialects: str) -> dict[str, Any]:
    """A version of a view, as it is sent."""
    return {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 1_700_000_000_000,
        "summary": {"engine-name": "test"},
        "representations": [
            {"type": "sql", "sql": sql, "dialect": dialect} for dialect in dialects or ("spark",)
        ],
        "default-namespace": ["default"],
    }


def view_version(sql: str = "SELECT 1", *dialects: str) -> ViewVersion:
    return ViewVersion(**version(sql, *dialects))


def new_view(name: str, sql: str = "SELECT 1", **more: Any) -> dict[str, Any]:
    """The body of a request to make a view."""
    schema = SCHEMA.model_dump(mode="json", by_alias=True)
    return {"name": name, "schema": schema, "view-version": version(sql), "properties": {}, **more}


def replacing(sql: str) -> list[dict[str, Any]]:
    """Updates that change the SQL of a view, as they are sent."""
    return [
        {"action": "add-view-version", "view-version": version(sql)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]


def replaced(sql: str) -> list[ViewUpdate]:
    """The same, for the catalog in Python."""
    added, current = replacing(sql)
    return [AddViewVersionUpdate(**added), SetCurrentViewVersionUpdate(**current)]
