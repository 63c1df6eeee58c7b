"""Properties of a table that may be kept, and those that libraries would act on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from distop.errors import InvalidArgument
from distop.metastore.records.locations import canonical, place_of

MAX_PROPERTIES, MAX_PROPERTY_NAME, MAX_PROPERTY, MAX_MAPPING = 256, 256, 16 << 10, 1 << 20
"""Of one table; characters of a name, of a value, and of the one that maps columns to names."""

_ACTS = re.compile(
    r"(.*[.-])?impl|py-.*|(s3|gcs|adls|hdfs|oss|abfs|wasb|client|rest|hive|glue|dynamodb|sql|fs|http|ssl|auth"
    r"|oauth2|header|token|credential|uri|warehouse)([.-].*)?|.*(secret|password|passwd|access-key|credential).*",
    re.DOTALL,
)
"""Names of properties that libraries act on."""

_KINDS = frozenset(
    """
    commit compatibility distop engine flink format gc history option read replace schema spark trino user
    version write
    """.split()  # noqa: SIM905
)
"""What a name with dots begins with: how files are written and read, what engines note, what users note."""

_NAMES_FOLDERS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Where programs of Iceberg write, in place of the table's location."""

ON_CONFLICT = "distop.on-conflict"
"""What becomes of an append of another program that has lost to other commits: ``refuse`` or ``rebase``."""


def check_properties(
    properties: Mapping[str, Any], location: str = "", standing: Mapping[str, Any] | None = None
) -> None:
    """Refuse properties that somebody's library would act on, and more of others than a table has use for.

    Of names with dots those are kept whose kind is known: libraries configure access to files and services
    by such names, and learn new ones. A single word is a note, unless libraries act on it; pyiceberg would
    call what ``py-io-impl`` names wherever a process opens the table. A folder to write to must be in that
    of the table, where its ``location`` is known: any other is another table's, or claimed by nobody.

    Parameters
    ----------
    standing:
        Those that the table has already: of them the kind is not asked for.

    Raises :class:`~distop.errors.InvalidArgument`; ``details["field"]`` is ``properties``.
    """
    if len(properties) > MAX_PROPERTIES:
        raise _bad_property(f"there are {len(properties):,} properties, at most {MAX_PROPERTIES} are kept")
    for name, value in properties.items():
        if _ACTS.fullmatch(name.lower()):
            raise _bad_property(
                f"property {name[:100]!r} names code, a credential or an endpoint",
                "leave it out; how files are reached is up to each process, not to the table",
            )
        if not _is_of_a_kind(name) and name not in (standing or {}):
            raise _bad_property(
                f"property {name[:100]!r} is of no kind that is kept",
                f"a note of your own begins with user. or has no dot; known: {', '.join(sorted(_KINDS))}",
            )
        most = MAX_MAPPING if name == "schema.name-mapping.default" else MAX_PROPERTY
        if len(name) > MAX_PROPERTY_NAME or len(str(value)) > most:
            raise _bad_property(
                f"property {name[:100]!r} is too long: names have at most {MAX_PROPERTY_NAME} characters, "
                f"and this one's value {most:,}"
            )
    check_on_conflict(properties)
    for name in _NAMES_FOLDERS if location else ():
        if name not in properties:
            continue
        own, place = (place_of(canonical(str(text), "properties")) for text in (location, properties[name]))
        if place != own and not place.startswith(f"{own}/"):
            raise InvalidArgument(
                f"property {name!r} names {properties[name]}, which is not in the table's own folder {own}",
                hint="leave it out, or name a folder below the table's location",
                details={"field": "properties"},
            )


def check_on_conflict(properties: Mapping[str, Any]) -> None:
    """Of a table, or of a snapshot. Raises :class:`~distop.errors.InvalidArgument` for another value."""
    if (wanted := properties.get(ON_CONFLICT, "refuse")) not in ("refuse", "rebase"):
        raise InvalidArgument(
            f"{ON_CONFLICT} is refuse or rebase, not {str(wanted)[:50]!r}", details={"field": ON_CONFLICT}
        )


def inert(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties that another program wrote, without those that :func:`check_properties` may refuse."""
    return {
        name: value
        for name, value in properties.items()
        if name not in _NAMES_FOLDERS and _is_of_a_kind(name) and not _ACTS.fullmatch(name.lower())
    }


def _is_of_a_kind(name: str) -> bool:
    kind, dot, _ = name.lower().partition(".")
    return not dot or kind in _KINDS


def _bad_property(message: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": "properties"})
