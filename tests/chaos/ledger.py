"""What should be true: which rows a table must hold, and how each operation must end."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from distop.metastore.records.names import OperationId

ROWS_PER_FILE, FILES_PER_BATCH = 40, 2
HEADER = "id,batch,kind\n"


@dataclass
class Batch:
    """Rows that belong together: readers see all of them or none."""

    name: str
    ids: range
    folder: Path


@dataclass
class Book:
    """One table: what it should hold."""

    table: str
    location: Path
    replaces: bool = False
    """Whether each operation overwrites what the ones before have written."""
    batches: dict[str, Batch] = field(default_factory=dict)
    """By name; what is to be seen, apart from foreign rows."""
    watermarks: set[str] = field(default_factory=set)
    """Partitions that must have one; the names of batches."""
    foreign: list[int] = field(default_factory=list)
    """Ids that another program has appended."""
    plain: bool = False
    """Whether it is a tree of files, without snapshots."""
    apart: bool = False
    """Whether its rows and its watermarks say nothing of each other."""
    rejected: list[str] = field(default_factory=list)
    """Folders of rows in quarantine, which stay."""
    operations: int = 0
    fresh: set[int] = field(default_factory=set)
    """Ids published since the table was last looked at."""

    def expected(self) -> list[int]:
        """The ids of all its rows."""
        ids = itertools.chain.from_iterable(batch.ids for batch in self.batches.values())
        return sorted([*ids, *self.foreign])

    def published(self, batch: Batch, *, marked: bool = True) -> None:
        """An operation has published a batch. ``marked``: and a watermark for it."""
        if self.replaces:
            self.batches.clear()
            self.foreign.clear()
        self.batches[batch.name] = batch
        if marked:
            self.watermarks.add(batch.name)
        self.fresh.update(batch.ids)


@dataclass
class Started:
    """An operation that was started, and how it must end."""

    operation: OperationId
    book: Book
    outcome: str = "success"
    batch: Batch | None = None
    folder: Path | None = None
    """Of an operation that leaves files of its own."""
    jobs: int = 0


class Sources:
    """Writes batches; no id is ever used twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids, self._numbers = 0, itertools.count(1)

    def next_id(self) -> int:
        self._ids += 1
        return self._ids - 1

    def batch(self, *, bad: bool = False, rows: int = 0) -> Batch:
        """A folder of files. ``bad``: with a row that cannot be read. ``rows``: of one file with so many."""
        name = f"batch-{next(self._numbers):05}"
        folder = self._folder / name
        folder.mkdir(parents=True)
        first = self._ids
        for number in range(1 if rows else FILES_PER_BATCH):
            lines = [f"{self.next_id()},{name},{'ab'[row % 2]}\n" for row in range(rows or ROWS_PER_FILE)]
            if bad and number:
                lines[-1] = f"none,{name},a\n"
            (folder / f"part-{number}.csv").write_text(HEADER + "".join(lines))
        return Batch(name, range(first, self._ids), folder)
