"""``distop dev``: etcd, a coordinator, an executor and the landing feed, as children of one process in one
terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shlex
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from distop.cli.options.session import DEFAULT_ADDRESS
from distop.cli.output.base import Output
from distop.cli.secure import ADMIN, LANDING, Security
from distop.client import AsyncClient, Credentials
from distop.errors import DeadlineExceeded, DistopError, InvalidArgument, PreconditionFailed, Unavailable
from distop.executor.host.sidecar_folder import SidecarFolder, take_lock
from distop.executor.runner.service import require_spark
from distop.lake.storage.allowed import ALL
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import FREQUENT_COMPACTION, EtcdProcess, free_port
from distop.process.logs import Level, LogFormat
from distop.process.tls import AddressInUse, check_address

log = logging.getLogger(__name__)

READY_S = 120.0
"""Longest start of a service; Spark needs ten seconds on a small machine."""

END_S = 15.0
"""Longest orderly shutdown of a service; after it the service is killed."""

_POLL_S = 0.2
_LONGEST_LINE = 1 << 20


class ServiceEnded(DistopError):
    """A service of distop dev or of a demo has ended unexpectedly."""

    code = "SERVICE_ENDED"


@dataclass(frozen=True, kw_only=True)
class DevConfig:
    """What ``distop dev`` runs."""

    data: Path
    """Root folder of all data."""
    listen: str = DEFAULT_ADDRESS
    web: str = "127.0.0.1:0"
    catalog: str = "127.0.0.1:0"
    master: str = "local[2]"
    etcd_port: int = 0
    landing: str | None = None
    """Each subfolder feeds the table of its name; ``None``: the folder ``landing`` below ``data``."""
    lease_ttl_s: int = 5
    log_level: Level = "info"
    log_format: LogFormat = "text"
    secure: bool = False
    """Use TLS, tokens and a policy."""


class Dev:
    """One run of ``distop dev``."""

    def __init__(self, config: DevConfig, out: Output, stream: TextIO | None = None) -> None:
        self._config = config
        self._out = out
        self._stream = stream or sys.stderr
        self._data = config.data.absolute()
        self._children: list[_Child] = []
        self._address = self._web = self._catalog = ""
        self._security: Security | None = None
        self._landing = config.landing or str(self._data / "landing")

    def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP; end everything in reverse order.

        Raises
        ------
        ServiceEnded
            One of the services has ended unexpectedly; the others have been stopped.
        AddressInUse
            The port is taken.
        PreconditionFailed
            The data folder is in use.
        ExtraMissing
            The master is a Spark master, and Spark is not installed here.
        """
        require_spark(self._config.master)
        self._address = _free_address("listen", self._config.listen)
        self._web = _free_address("web", self._config.web)
        self._catalog = _free_address("catalog", self._config.catalog)
        with _alone_in(self._data):
            if self._config.landing is None:
                (self._data / "landing").mkdir(exist_ok=True)
            etcd, connection = self._etcd()
            with etcd:
                asyncio.run(self._supervise(etcd, connection))

    def _etcd(self) -> tuple[EtcdProcess, EtcdConfig]:
        """The embedded etcd, and how to connect to it."""
        secure = self._data / "secure"
        if not self._config.secure and secure.exists():
            raise PreconditionFailed(
                f"{self._data} was created with --secure and has a policy", hint="add --secure"
            )
        port = self._config.etcd_port or _port_of_last_time(self._data / "etcd-port")
        if self._config.secure:
            served = (self._address, self._web, self._catalog)
            self._security = Security(secure, (address.rpartition(":")[0] for address in served))
            return self._security.etcd(self._data / "etcd", port)
        etcd = EtcdProcess(self._data / "etcd", client_port=port, options=FREQUENT_COMPACTION)
        return etcd, EtcdConfig(endpoints=(etcd.endpoint,))

    async def _supervise(self, etcd: EtcdProcess, connection: EtcdConfig) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            loop.add_signal_handler(signal.SIGHUP, self._on_signal, stop)
        work = asyncio.create_task(self._work(etcd, connection))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, stopping):
                task.cancel()
            await asyncio.gather(work, stopping, return_exceptions=True)
            for child in reversed(self._children):
                await child.end()
                if child.name == "executor":
                    end_sidecar(connection)

    def _on_signal(self, stop: asyncio.Event) -> None:
        if stop.is_set():  # the second Ctrl-C kills
            for child in self._children:
                child.kill()
        stop.set()

    async def _work(self, etcd: EtcdProcess, connection: EtcdConfig) -> None:
        """Start everything, print the addresses, and supervise. Ends only with an error."""
        environment = environment_of(connection)
        served = ["--listen", self._address, "--web", self._web, "--catalog", self._catalog]
        served += ["--warehouse", (self._data / "tables").as_uri()]
        served += self._security.coordinator_arguments() if self._security is not None else []
        await self._start("coordinator", served, environment)
        await self._until_member("coordinator", etcd)
        if self._security is not None:
            async with self._client(timeout_s=10.0) as client:
                await self._security.grant(client)
        await self._start("executor", ["--master", self._config.master], environment)
        await self._until_member("executor", etcd)
        feeds = ["--every", "1s", "--address", self._address, "--", self._landing]
        environment |= self._credentials(LANDING).to_env()
        await self._start("landing", feeds, environment, is_member=False)
        self._out.facts("distop is ready", self._facts(connection), self._hints(connection))
        while True:
            await asyncio.sleep(_POLL_S)
            self._check(etcd)

    async def _start(
        self, service: str, arguments: list[str], environment: dict[str, str], *, is_member: bool = True
    ) -> None:
        config = self._config
        # -P: Python does not search the current folder for modules.
        command = [sys.executable, "-P", "-m", "distop.cli", service]
        command += ["--end-with-parent", str(os.getpid())]
        command += ["--lease-ttl", str(config.lease_ttl_s)] if is_member else []
        command += ["--log-level", config.log_level, "--log-format", config.log_format, *arguments]
        # A process group of its own: Ctrl-C in the terminal reaches only us, and we end the child in its
        # turn.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=environment,
            process_group=0,
            limit=_LONGEST_LINE,
        )
        self._children.append(_Child(service, process, self._stream))

    def _credentials(self, subject: str) -> Credentials:
        return self._security.credentials(subject) if self._security is not None else Credentials()

    def _client(self, timeout_s: float) -> AsyncClient:
        return AsyncClient(self._address, timeout_s=timeout_s, credentials=self._credentials(ADMIN))

    async def _until_member(self, role: str, etcd: EtcdProcess) -> None:
        """Wait until a service of this role has registered."""
        mine = self._children[-1].process.pid
        try:
            async with asyncio.timeout(READY_S), self._client(timeout_s=1.0) as client:
                while True:
                    self._check(etcd)
                    with contextlib.suppress(Unavailable, DeadlineExceeded):
                        if any(
                            member.role == role and member.pid == mine for member in await client.members()
                        ):
                            return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ServiceEnded(
                f"the {role} was not ready within {READY_S:g} s", hint="see its log above"
            ) from None

    def _check(self, etcd: EtcdProcess) -> None:
        for child in self._children:
            if (status := child.process.returncode) is not None:
                how = f"by signal {-status}" if status < 0 else f"with status {status}"
                raise ServiceEnded(f"the {child.name} has ended {how}", hint="see its log above")
        if not etcd.running:
            raise ServiceEnded("etcd has ended", hint=f"its log is {etcd.log_file}")

    def _facts(self, etcd: EtcdConfig) -> dict[str, str]:
        scheme = "http" if self._security is None else "https"
        return {
            "address": self._address,
            "page": f"{scheme}://{self._web}/",
            "catalog": f"{scheme}://{self._catalog}/",
            "etcd": etcd.endpoints[0],
            "data": str(self._data),
            "landing": self._landing,
            "master": self._config.master,
            **({} if self._security is None else {"secure": str(self._security.folder)}),
        }

    def _hints(self, etcd: EtcdConfig) -> list[str]:
        elsewhere = {} if self._address == DEFAULT_ADDRESS else {"DISTOP_ADDRESS": self._address}
        etcdctl, others = f"  etcdctl --endpoints {etcd.endpoints[0]}", []
        if (security := self._security) is not None:
            ca, cert, key = map(shlex.quote, (etcd.ca_cert, etcd.cert, etcd.key))
            etcdctl += f" --cacert {ca} --cert {cert} --key {key}"
            token = f"$(cat {shlex.quote(security.token_path('reader'))})"
            others = [
                f'  curl --cacert {ca} -H "Authorization: Bearer {token}" https://{self._web}/api/tables',
                "",
                "The page asks for a token. Those of writer, operator and reader are in the same folder.",
            ]
        shown = elsewhere | etcd.to_public_env() | self._credentials(ADMIN).to_env()
        return [
            "",
            "In another terminal:",
            *(f"  export {name}={shlex.quote(value)}" for name, value in shown.items()),
            f"  distop table create demo --location {shlex.quote(str(self._data / 'tables' / 'demo'))}",
            "  distop operation start demo noop --arg partitions=100 --wait",
            "  distop operation list",
            f"{etcdctl} get --prefix distOp.",
            *others,
            "",
            "Ctrl-C stops everything; the data stays.",
        ]


class _Child:
    """A service, and the copy of its output to the terminal."""

    def __init__(self, name: str, process: Process, stream: TextIO) -> None:
        self.name = name
        self.process = process
        self._stream = stream
        self._lines = asyncio.create_task(self._relay())

    async def end(self) -> None:
        """SIGTERM, then SIGKILL if it has not ended in time."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            try:
                async with asyncio.timeout(END_S):
                    await self.process.wait()
            except TimeoutError:
                log.warning("service_killed", extra={"service": self.name, "after_s": END_S})
                self.kill()
                await self.process.wait()
        # A process that it left may hold the pipe open.
        await asyncio.wait({self._lines}, timeout=1.0)
        self._lines.cancel()

    def kill(self) -> None:
        """SIGKILL, also for everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def _relay(self) -> None:
        reader = self.process.stdout
        while reader is not None:
            try:
                line = await reader.readline()
            except ValueError:
                line = b"(a line was too long to show)\n"
            if not line:
                return
            print(
                f"{self.name:<11} | {line.decode(errors='replace').rstrip()}", file=self._stream, flush=True
            )


def end_sidecar(etcd: EtcdConfig) -> None:
    """End the sidecar that Spark's tasks have started; otherwise it would wait a while for more of them."""
    folder = SidecarFolder.of(etcd.endpoints, etcd.prefix)
    try:
        lock = take_lock(folder.serving_lock)
        if lock is not None:  # no sidecar runs
            os.close(lock)
            return
        os.kill(int(folder.pid_file.read_text()), signal.SIGTERM)
    except (OSError, ValueError):
        return


def _port_of_last_time(file: Path) -> int:
    """The port that etcd last used in this folder if it is free, else a new one from now on.

    Things named after etcd's address (a sidecar's folder) are then found again.
    """
    try:
        port = int(file.read_text())
        _free_address("etcd", f"127.0.0.1:{port}")
    except (OSError, ValueError, DistopError):
        port = free_port()
        file.write_text(f"{port}\n")
    return port


def environment_of(etcd: EtcdConfig) -> dict[str, str]:
    """Our environment without settings of another etcd and without credentials for other coordinators."""
    foreign = ("DISTOP_PREFIX", "DISTOP_TOKEN", "DISTOP_TOKEN_FILE", "DISTOP_CA", "DISTOP_CERT", "DISTOP_KEY")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DISTOP_ETCD") and name not in foreign
    }
    return ALL | kept | etcd.to_env()


def _free_address(field: str, listen: str) -> str:
    """``listen`` with a port that is free now."""
    check_address(field, listen)
    host, _, port = listen.rpartition(":")
    if int(port) == 0:
        return f"{host}:{free_port()}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise AddressInUse(
            f"cannot listen on {listen}: {error.strerror or error}",
            hint=f"is another distop running? Choose another with --{field} host:port, or port 0",
            details={"field": field},
        ) from None
    return listen


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """The data folder, created if missing, locked for this process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")
    except OSError as error:
        raise InvalidArgument(f"the data folder cannot be used: {error}", details={"field": "data"}) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreconditionFailed(
                f"another distop dev uses {folder}", hint="choose another folder with --data"
            ) from None
        yield
