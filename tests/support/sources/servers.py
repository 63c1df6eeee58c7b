"""Servers of a test's own, each in a process: some native clients keep Python's lock while they wait."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def served_by(program: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """What a program of this folder says on its first line, such as its address; and its process.

    It runs until the context is left; if this process dies, until its standard input ends.
    """
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(program))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        assert address, f"{program} does not start"
        yield address, process
    finally:
        process.kill()
        process.communicate()
