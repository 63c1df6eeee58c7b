"""What /proc tells of processes, while these start others, open and close files, and end."""

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def sockets_of(pid: int | str) -> set[str]:
    """The inodes of the sockets that a process holds, as /proc/net/tcp names them; ``self``: this one."""
    links = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.add(os.readlink(descriptor))
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def children(pid: int, word: bytes) -> list[int]:
    """The processes that any thread of one has started, and that have a word in their command line."""
    pids = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            pids += (thread / "children").read_text().split()
    return sorted(int(child) for child in pids if word in _command(child))


def _command(pid: str) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def ancestors(pid: int) -> Iterator[int]:
    """The parent of a process, the parent's parent, and so on."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, within 120 s; with what it says. ``options``: of ``subprocess.run``."""
    given = {"timeout": 120, "check": False, **options}
    return subprocess.run(command, capture_output=True, text=True, **given)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a program to end, and see to it that it does."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listens(address: str) -> bool:
    """Whether somebody takes connections at ``host:port``."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
