"""What a Delta table asks of its writers (Delta protocol, "Requirements for Writers"): what of it is refused.

Jobs write the files, and the library only commits them. So what it checks, computes or renames when it
writes rows itself does not happen: a table that needs that would get wrong rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from distop.errors import PreconditionFailed

MAX_VERSION = 7
"""The newest version of writers; it lists the features of a table by name."""

_IN_USE_BY = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "generated numbers",
    "CURRENT_DEFAULT": "a default value",
}
"""Fields of a column's metadata that ask for something of writers."""

_BY_USE = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
"""Features that delta-rs commits to, and that by themselves ask nothing of the writers of files: only
settings and columns of the table do."""


def refuse_unwritable(table: Any, mode: str = "append") -> None:
    """Raise :class:`~distop.errors.PreconditionFailed`, which names what the table asks of its writers, if
    rows in this mode may not be written as distop does.

    Parameters
    ----------
    table:
        A ``deltalake.DeltaTable``.
    """
    location = table.table_uri
    if mode == "overwrite" and table.metadata().configuration.get("delta.appendOnly") == "true":
        raise PreconditionFailed(
            f"the Delta table at {location} has delta.appendOnly: its rows may not be replaced",
            hint="append to it, or have its owner set delta.appendOnly to false",
            details={"field": "mode"},
        )
    asked = next(_asked(table), None)
    if asked is not None:
        raise PreconditionFailed(
            f"the Delta table at {location} has {asked}, which distop does not apply to the rows it writes",
            hint="write to it with Spark or delta-rs, or remove that from the table",
            details={"field": "table"},
        )


def _asked(table: Any) -> Iterator[str]:
    """What the table asks of writers that distop does not do."""
    settings = table.metadata().configuration
    for name in sorted(settings):
        if name.startswith("delta.constraints."):
            yield f"the CHECK constraint {name.removeprefix('delta.constraints.')!r}"
    if (mapping := settings.get("delta.columnMapping.mode", "none")) != "none":
        yield f"column mapping by {mapping}"
    for column, metadata in _metadata(json.loads(table.schema().to_json())):
        for name, what in _IN_USE_BY.items():
            if name in metadata:
                yield f"{what} for column {column!r}"
    protocol = table.protocol()
    if protocol.min_writer_version > MAX_VERSION:
        yield f"version {protocol.min_writer_version} of Delta's protocol for writers"
    for feature in protocol.writer_features or ():
        if feature not in _BY_USE:
            yield f"the feature {feature}"


def _metadata(kind: Any, column: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The columns of a type in Delta's JSON, nested ones included, with their metadata."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        name = f"{column}.{field['name']}" if column else field["name"]
        yield name, field.get("metadata") or {}
        yield from _metadata(field["type"], name)
    for inner in ("elementType", "keyType", "valueType"):
        yield from _metadata(kind.get(inner), column)


def types_of(schema: Any) -> dict[str, str]:
    """Column -> its type as Delta writes it, without comments and other metadata.

    Parameters
    ----------
    schema:
        A ``deltalake.Schema``.
    """
    fields = json.loads(schema.to_json())["fields"]
    return {field["name"]: _shown(field["type"]) for field in fields}


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(_plain(kind), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items() if name != "metadata"}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
