"""Fills the tables, and reads them back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from truth.inputs import Cases
from truth.installation import Installation
from truth.readers import Reader, rows_of
from truth.values import WRITERS, Case, Kind, number_of
from truth.writers import Refusals, Started, described


class Writers(Protocol):
    """Some ways into a table, by name."""

    @property
    def names(self) -> Sequence[str]: ...

    def send(self, kind: Kind, writer: str, cases: Cases) -> Iterable[Started]:
        """Begin to send values."""

    def ended(self, started: Started) -> Refusals:
        """The rows that were refused, once the others are in the table."""


@dataclass
class Results:
    """What became of all values: refused, read, or not readable."""

    refusals: dict[str, Refusals] = field(default_factory=dict)
    """By type: why rows are not in the table."""
    rows: dict[tuple[str, str], dict[int, Any]] = field(default_factory=dict)
    """By type and reader: the values by the ids of their rows."""
    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """By type, reader and writer: why the rows cannot be read."""


def sent_by(kind: Kind, writer: str) -> dict[int, Case]:
    """The values of a type that a writer sends, by the ids of their rows."""
    cases = enumerate(kind.cases)
    return {number_of(writer, number): case for number, case in cases if writer in case.writers}


def fill(writers: Writers, kinds: Iterable[Kind], results: Results) -> None:
    """Send everything. If nothing of what is sent at once gets in, though some should, each is sent alone."""
    begun = [
        (kind, writer, started)
        for kind in kinds
        for writer in writers.names
        for started in writers.send(kind, writer, sent_by(kind, writer))
    ]
    for kind, writer, started in begun:
        refusals, cases = writers.ended(started), started.cases
        hopeful = any(not kind.is_refused(case, writer) for case in cases.values())
        if hopeful and len(refusals) == len(cases) > 1:
            alone = (
                each for number, case in cases.items() for each in writers.send(kind, writer, {number: case})
            )
            refusals = {number: text for each in alone for number, text in writers.ended(each).items()}
        results.refusals.setdefault(kind.name, {}).update(refusals)


def read(
    installation: Installation, readers: Mapping[str, Reader], kinds: Iterable[Kind], results: Results
) -> None:
    """Read each table by each reader; where that fails, the rows of each writer alone."""
    for kind in kinds:
        table = installation.iceberg(kind)
        for name, reader in readers.items():
            rows = results.rows.setdefault((kind.name, name), {})
            if table.current_snapshot() is None:
                continue
            try:
                rows.update(rows_of(reader(table, "id >= 0"), kind.arrow))
            except Exception:
                for writer in WRITERS:
                    first = number_of(writer, 0)
                    try:
                        some = reader(table, f"id >= {first} and id < {first + 1000}")
                        rows.update(rows_of(some, kind.arrow))
                    except Exception as error:
                        results.failures[kind.name, name, writer] = described(error)
