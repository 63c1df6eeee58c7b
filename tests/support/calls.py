"""Calls for other processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from distop.process.serving import alive


def wait_for(path: Path, *, shows_life: bool = False) -> str:
    """Returns once there is such a file."""
    while not path.exists():
        if shows_life:
            alive()
        time.sleep(0.01)
    return "came"


def spin(path: Path) -> None:
    """Never rests until there is such a file."""
    while not path.exists():
        pass


def modules() -> list[str]:
    """What the process has loaded."""
    return list(sys.modules)
