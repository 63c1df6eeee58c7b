"""Looking at a table of plain files."""

import os
import time
from pathlib import Path

import pyarrow.dataset as ds


def all_files(folder: Path) -> list[Path]:
    """All files below a folder, sorted. Folders may vanish meanwhile, which ``rglob`` does not stand."""
    return sorted(Path(root, name) for root, _, names in os.walk(folder) for name in names)


def files_in(folder: Path) -> list[Path]:
    """The same but for the one that says whose folder it is."""
    return [path for path in all_files(folder) if not is_owner(path)]


def names_in(folder: Path) -> list[str]:
    """Their paths below it."""
    return [str(path.relative_to(folder)) for path in files_in(folder)]


def ids_in(folder: Path) -> list[int]:
    """The column ``id``, sorted, as a reader that knows nothing of distop sees it."""
    ids: list[int] = ds.dataset(folder, partitioning="hive").to_table()["id"].to_pylist()
    return sorted(ids)


def success_of(folder: Path) -> str:
    """What the marker holds."""
    return (folder / "_SUCCESS").read_text()


def age(folder: Path, days: float = 10.0) -> None:
    """Make all files below a folder look as if they had been written a while ago."""
    then = time.time() - days * 86400
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def is_owner(path: Path) -> bool:
    """Whether a file says whose folder it is in: it is there from the first write to the drop."""
    return path.parent.name == "_distop" and path.name.startswith("table-")
