"""Places that commit steps act on, and steps to act with: what their contract is tested over."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from distop.commit.contract import StepContext
from distop.lake.plain.steps import (
    DeleteFileArgument,
    FolderArgument,
    RenameArgument,
    SuccessArgument,
    UnmarkArgument,
)
from distop.lake.storage.stored_file import StoredFile
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.metastore.records.table import TableRecord

TOKEN = "t/k/3/u1"
ODD_NAME = "a b/100% of #1?x=y&z 'q' \"d\" {e} [f]* 🦆 飞机.csv"
"""What paths may be made of; line breaks are tried where the file system takes them."""


@dataclass
class World:
    """A folder, and the storage options that lead to it."""

    url: str
    storage: dict[str, Any] = field(default_factory=dict)
    aside: str = ""
    """URL of another file system, where there is one."""

    @property
    def context(self) -> StepContext:
        arg = OperationArg(
            table="t", type="k", instance=3, uuid="u1", location=self.url, storage=self.storage
        )
        return StepContext(table=TableRecord(name="t", location=self.url), arg=arg, token=TOKEN)

    def stored(self, name: str) -> StoredFile:
        return StoredFile.of(name if "://" in name else f"{self.url}/{name}", self.context.arg)

    def write(self, name: str, data: bytes) -> StoredFile:
        file = self.stored(name)
        if file.is_local:
            os.makedirs(file.folder, exist_ok=True)
            with open(file.path, "wb") as stream:
                stream.write(data)
        else:
            file.fs.pipe_file(file.path, data)
        return file

    def read(self, name: str) -> bytes | None:
        file = self.stored(name)
        if file.existing() is None:
            return None
        with file.open_to_read() as stream:
            held: bytes = stream.read()
        return held

    def files(self) -> dict[str, bytes | str]:
        """All paths below the folder and the one aside: folders with their mode, files with their content."""
        contents: dict[str, bytes | str] = {}
        for root in filter(None, (self.url, self.aside)):
            file = self.stored(root if "://" in root else f"file://{root}")
            names = file.fs.find(file.path, withdirs=file.is_local) if file.fs.exists(file.path) else []
            for name in names:
                held = f"{os.stat(name).st_mode:o}" if os.path.isdir(name) else file.fs.cat_file(name)
                contents[str(name).removeprefix(file.path)] = held
        return contents

    def contents(self) -> dict[str, bytes]:
        """As :meth:`files`, without folders."""
        return {name: held for name, held in self.files().items() if isinstance(held, bytes)}


def content(data: bytes) -> dict[str, Any]:
    """Size and checksum of a step's argument."""
    return {"size": len(data), "checksum": f"md5:{hashlib.md5(data).hexdigest()}"}


def rename(
    world: World, data: bytes = b"rows", *, source: str = "", target: str = "", **options: Any
) -> StepRecord:
    """Stage a file; the step that publishes it under an odd name."""
    staged = world.write(source or "staged/1.csv", data)
    to = world.stored(target or f"final/{ODD_NAME}")
    return RenameArgument(source=staged.url, target=to.url, **content(data), **options).record()


def across(world: World) -> StepRecord:
    return rename(world, b"rows" * 1000, source=f"{world.aside}/staged/1.csv")


def replacing(world: World) -> StepRecord:
    world.write("final/1.csv", b"old rows")
    return rename(world, b"new rows", target="final/1.csv", overwrite=True)


def delete(world: World) -> StepRecord:
    file = world.write(f"old/{ODD_NAME}", b"old")
    argument = DeleteFileArgument.of(file)
    assert argument is not None
    return argument.record()


def folder(world: World) -> StepRecord:
    return FolderArgument(path=f"{world.url}/made/of {ODD_NAME}", mode="0750").record()


def success(world: World) -> StepRecord:
    return SuccessArgument(path=f"{world.url}/day=1/_SUCCESS").record()


def success_again(world: World) -> StepRecord:
    world.write("day=1/_SUCCESS", b"t/k/2/u0")
    return SuccessArgument(path=f"{world.url}/day=1/_SUCCESS", overwrite=True).record()


def unmark(world: World) -> StepRecord:
    world.write("day=1/_SUCCESS", b"t/k/2/u0")
    return UnmarkArgument(path=f"{world.url}/day=1/_SUCCESS").record()


CASES: dict[str, Callable[[World], StepRecord]] = {
    "rename": rename,
    "rename over": replacing,
    "delete": delete,
    "mkdir": folder,
    "success": success,
    "success over": success_again,
    "unmark": unmark,
}
