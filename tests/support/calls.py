"""Calls for other processes."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from distop.coordinator.work.processes import Surroundings
from distop.process.serving import alive
from distop.process.template import Template

T = TypeVar("T")


def wait_for(path: Path, *, shows_life: bool = False) -> str:
    """Returns once there is such a file."""
    while not path.exists():
        if shows_life:
            alive()
        time.sleep(0.01)
    return "came"


def begin_and_wait_for(path: Path, _: bytes = b"") -> str:
    """Shows that it has begun by a file beside it."""
    path.with_suffix(".begun").touch()
    return wait_for(path)


def spin(path: Path) -> None:
    """Never rests until there is such a file."""
    while not path.exists():
        pass


def modules() -> list[str]:
    """What the process has loaded."""
    return list(sys.modules)


def log_later(path: Path) -> None:
    """Returns, and has a thread that logs once there is such a file."""

    def later() -> None:
        wait_for(path)
        logging.getLogger("later").warning("it came")
        path.rename(path.with_suffix(".logged"))

    threading.Thread(target=later, daemon=True).start()


def leave_loading(module: str, never: Path, log: Path) -> None:
    """Has a worker that waits for a file, notes its id, and loads a module in the template."""
    template = Template()
    worker = template.fork(int)
    call = partial(wait_for, never)
    threading.Thread(target=worker.run, args=(call,), kwargs={"limit_s": 3600.0}, daemon=True).start()
    with log.open("a") as file:
        file.write(f"{worker.pid}\n")
    template.load(module, 3600.0)


def within(call: Callable[[], T], surroundings: Surroundings) -> T:
    """A call of a coordinator."""
    return call()


def process_with(module: str) -> tuple[int, bool]:
    """The process that calls, and whether it has the module loaded."""
    return os.getpid(), module in sys.modules


def lives(pid: int) -> bool:
    """Whether it runs; one that has ended may stay for a moment until its parent looks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
