"""Looking at a table of plain files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds


def files_in(folder: Path) -> list[Path]:
    """All files below a folder, hidden ones too, but the one that says whose folder it is; sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not is_owner(path))


def names_in(folder: Path) -> list[str]:
    """Their paths below it."""
    return [str(path.relative_to(folder)) for path in files_in(folder)]


def ids_in(folder: Path) -> list[int]:
    """The column ``id``, sorted, as a reader that knows nothing of distop sees it."""
    found: list[int] = ds.dataset(folder, partitioning="hive").to_table()["id"].to_pylist()
    return sorted(found)


def success_of(folder: Path) -> str:
    """What the marker holds."""
    return (folder / "_SUCCESS").read_text()


def is_owner(path: Path) -> bool:
    """Whether a file says whose folder it is in: it is there from the first write to the drop."""
    return path.parent.name == "_distop" and path.name.startswith("table-")
