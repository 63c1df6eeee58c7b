"""Fills the tables, and reads them back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from truth.doors import Refusals, Started, told
from truth.inputs import Cases
from truth.installation import Installation
from truth.readers import Reader, rows_of
from truth.values import DOORS, Case, Kind, number_of


class Doors(Protocol):
    """Some ways into a table."""

    @property
    def names(self) -> Sequence[str]: ...

    def send(self, kind: Kind, door: str, cases: Cases) -> Iterable[Started]:
        """Begin to send values."""

    def ended(self, started: Started) -> Refusals:
        """The rows that were refused, once the others are in the table."""


@dataclass
class Seen:
    """What has become of all values."""

    refusals: dict[str, Refusals] = field(default_factory=dict)
    """By type."""
    rows: dict[tuple[str, str], dict[int, Any]] = field(default_factory=dict)
    """By type and reader: the values by the ids of their rows."""
    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """By type, reader and door: why the rows cannot be read."""


def sent_by(kind: Kind, door: str) -> dict[int, Case]:
    """The values of a type that go through a door, by the ids of their rows."""
    cases = enumerate(kind.cases)
    return {number_of(door, number): case for number, case in cases if door in case.doors}


def fill(doors: Doors, kinds: Iterable[Kind], seen: Seen) -> None:
    """Send everything. If nothing of what is sent at once gets in, though some should, each is sent alone."""
    begun = [
        (kind, door, started)
        for kind in kinds
        for door in doors.names
        for started in doors.send(kind, door, sent_by(kind, door))
    ]
    for kind, door, started in begun:
        refusals, cases = doors.ended(started), started.cases
        hopeful = any(not kind.is_refused(case, door) for case in cases.values())
        if hopeful and len(refusals) == len(cases) > 1:
            alone = (one for number, case in cases.items() for one in doors.send(kind, door, {number: case}))
            refusals = {number: text for one in alone for number, text in doors.ended(one).items()}
        seen.refusals.setdefault(kind.name, {}).update(refusals)


def read(
    installation: Installation, readers: Mapping[str, Reader], kinds: Iterable[Kind], seen: Seen
) -> None:
    """Read each table by each reader; where that fails, the rows of each door alone."""
    for kind in kinds:
        table = installation.iceberg(kind)
        for name, reader in readers.items():
            rows = seen.rows.setdefault((kind.name, name), {})
            if table.current_snapshot() is None:
                continue
            try:
                rows.update(rows_of(reader(table, "id >= 0"), kind.arrow))
            except Exception:
                for door in DOORS:
                    first = number_of(door, 0)
                    try:
                        some = reader(table, f"id >= {first} and id < {first + 1000}")
                        rows.update(rows_of(some, kind.arrow))
                    except Exception as error:
                        seen.failures[kind.name, name, door] = told(error)
