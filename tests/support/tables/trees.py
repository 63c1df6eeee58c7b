"""Looking at a table of plain files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds


def names_in(folder: Path) -> list[str]:
    """All files below a folder, hidden ones too, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def ids_in(folder: Path) -> list[int]:
    """The column ``id``, sorted, as a reader that knows nothing of distop sees it."""
    found: list[int] = ds.dataset(folder, partitioning="hive").to_table()["id"].to_pylist()
    return sorted(found)


def success_of(folder: Path) -> str:
    """What the marker holds."""
    return (folder / "_SUCCESS").read_text()
