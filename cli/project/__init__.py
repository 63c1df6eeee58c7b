"""``distop init``: the files of a project that runs, which are below ``files``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from distop.errors import AlreadyExists, InvalidArgument

ENVIRONMENT = ".env"
"""What Compose reads beside its file."""


def write(folder: Path) -> list[str]:
    """Write the project; the paths of its files below ``folder``.

    ``folder`` is made if it is missing. A file that was written stays only if all were.

    Raises
    ------
    AlreadyExists
        Some of the files are there already. None was written.
    InvalidArgument
        The folder cannot be written to.
    """
    content = {path: file.read_bytes() for path, file in _files(files(__package__) / "files")}
    content[ENVIRONMENT] = f"DATA_OWNER={os.getuid()}:{os.getgid()}\n".encode()
    if there := [path for path in content if os.path.lexists(folder / path)]:
        raise AlreadyExists(
            f"{folder} has {', '.join(sorted(there))} already", hint="name another folder: distop init FOLDER"
        )
    written: list[Path] = []
    try:
        for path, data in content.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:  # never over one that has come meanwhile
                written.append(target)
                file.write(data)
    except OSError as error:
        for target in written:
            target.unlink(missing_ok=True)
        raise InvalidArgument(
            f"{folder} cannot be written to: {error}", details={"field": "folder"}
        ) from None
    return sorted(content)


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry
