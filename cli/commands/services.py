"""Commands that run a service in the foreground: coordinator, executor, sidecar, dev."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distop.cli.options.bundles import Bundle, command
from distop.cli.options.doors import Doors
from distop.cli.options.limits import CallerLimits
from distop.cli.options.metrics import ServeMetrics
from distop.cli.options.parsing import parse_duration, parse_properties
from distop.cli.options.session import DEFAULT_ADDRESS, WithOutput
from distop.cli.output.base import Output
from distop.cli.output.exits import SOMETHING_WRONG
from distop.cli.output.logs import Level, LogFormat, configure
from distop.errors import InvalidArgument, PreconditionFailed

if TYPE_CHECKING:
    from distop.metastore.etcd.config import EtcdConfig

app = typer.Typer()

PANEL = "Services"

MASTER_HELP = "Spark master, such as local[2]; none: jobs run in threads, without Spark."


@dataclasses.dataclass(frozen=True)
class EtcdOptions:
    """Where etcd is and how to connect to it. The environment supplies what is not given."""

    etcd: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...", envvar="DISTOP_ETCD", help="etcd members. Default: 127.0.0.1:2379."
        ),
    ] = None
    prefix: Annotated[
        str | None, typer.Option(envvar="DISTOP_PREFIX", help="First part of every key. Default: distOp.")
    ] = None
    etcd_user: Annotated[
        str | None, typer.Option(envvar="DISTOP_ETCD_USER", help="For etcd with authentication.")
    ] = None
    etcd_password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="DISTOP_ETCD_PASSWORD_FILE",
            help="File with the password; else from DISTOP_ETCD_PASSWORD.",
        ),
    ] = None
    etcd_cacert: Annotated[
        str | None, typer.Option(metavar="PEM", envvar="DISTOP_ETCD_CACERT", help="CA; enables TLS.")
    ] = None
    etcd_cert: Annotated[
        str | None, typer.Option(metavar="PEM", envvar="DISTOP_ETCD_CERT", help="Client certificate.")
    ] = None
    etcd_key: Annotated[
        str | None, typer.Option(metavar="PEM", envvar="DISTOP_ETCD_KEY", help="And its key.")
    ] = None

    def config(self) -> EtcdConfig:
        from distop.metastore.etcd.config import EtcdConfig

        given = {
            "DISTOP_ETCD": self.etcd,
            "DISTOP_PREFIX": self.prefix,
            "DISTOP_ETCD_USER": self.etcd_user,
            "DISTOP_ETCD_PASSWORD_FILE": self.etcd_password_file,
            "DISTOP_ETCD_CACERT": self.etcd_cacert,
            "DISTOP_ETCD_CERT": self.etcd_cert,
            "DISTOP_ETCD_KEY": self.etcd_key,
        }
        said = {name: value for name, value in given.items() if value is not None}
        return EtcdConfig.from_env({**os.environ, **said})


@dataclasses.dataclass(frozen=True)
class ServiceOptions:
    """The options of every service. Making it configures the logs of this process."""

    lease_ttl: Annotated[
        int,
        typer.Option(
            min=2,
            metavar="SECONDS",
            help="Time to live of leases: a dead process loses what it holds after it.",
        ),
    ] = 5
    log_level: Annotated[Level, typer.Option(help="Of the log on stderr.")] = "info"
    log_format: Annotated[LogFormat, typer.Option(help="Text, or one JSON object a line.")] = "text"
    end_with_parent: Annotated[
        int, typer.Option(hidden=True, help="End (SIGTERM) when the process with this id, our parent, does.")
    ] = 0

    def __post_init__(self) -> None:
        configure(self.log_level, self.log_format)
        if self.end_with_parent:
            end_with(self.end_with_parent)


@dataclasses.dataclass(frozen=True)
class AllowOptions:
    """What callers may read and write. Making it sets the environment of this process and its children."""

    allow_source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Folder or URL prefix that operations may read; '*': any. Repeatable; adds to "
            "DISTOP_ALLOW_SOURCES. Default: none.",
        ),
    ] = None
    allow_location: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Folder or URL prefix that tables may lie in; '*': any. Repeatable; adds to "
            "DISTOP_ALLOW_LOCATIONS. Default: none.",
        ),
    ] = None
    allow_endpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Endpoint of storage that may be reached with the credentials of this process, for any "
            "caller. Repeatable; adds to DISTOP_ALLOW_ENDPOINTS.",
        ),
    ] = None

    def __post_init__(self) -> None:
        from distop.commit.files import allowed

        allowed.allow(allowed.SOURCES, self.allow_source or ())
        allowed.allow(allowed.LOCATIONS, self.allow_location or ())
        allowed.allow(allowed.ENDPOINTS, self.allow_endpoint or ())
        allowed.restrict()


Etcd = Annotated[EtcdOptions, Bundle(EtcdOptions)]
Service = Annotated[ServiceOptions, Bundle(ServiceOptions)]
Allow = Annotated[AllowOptions, Bundle(AllowOptions)]


@command(app, rich_help_panel=PANEL)
def coordinator(
    etcd: Etcd,
    service: Service,
    allow: Allow,
    doors: Doors,
    limits: CallerLimits,
    out: WithOutput,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve gRPC; port 0 takes a free one.")
    ] = DEFAULT_ADDRESS,
    web: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where to serve the web page and /metrics."),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to serve Iceberg's REST catalog. Access rights: as for gRPC.",
        ),
    ] = None,
    warehouse: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where the catalog puts tables that are created without a location."
        ),
    ] = None,
    max_commit_attempts: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Park an operation after this many failures to publish it."),
    ] = 5,
    call_timeout: Annotated[
        str,
        typer.Option(metavar="DURATION", help="End a hook or commit step without a heartbeat for this long."),
    ] = "10m",
    remember_requests: Annotated[
        str, typer.Option(metavar="DURATION", help="How long request ids are remembered.")
    ] = "7d",
) -> int:
    """Run a coordinator: serve gRPC, and lead tables that have work.

    Example: distop coordinator --allow-source s3://landing/ --allow-location s3://tables/
    """
    from distop.coordinator.config import CoordinatorConfig
    from distop.coordinator.service import run

    config = CoordinatorConfig(
        etcd=etcd.config(),
        listen=listen,
        web=web,
        identity=doors.identity(),
        catalog=catalog,
        warehouse=warehouse,
        tls=doors.tls(),
        lease_ttl_s=service.lease_ttl,
        max_commit_attempts=max_commit_attempts,
        call_timeout_s=parse_duration(call_timeout, "call_timeout"),
        remember_requests_s=parse_duration(remember_requests, "remember_requests"),
        limits=limits.limits(),
    )
    return _ended(out, "coordinator", run(config))


@command(app, rich_help_panel=PANEL)
def executor(
    etcd: Etcd,
    service: Service,
    allow: Allow,
    metrics: ServeMetrics,
    out: WithOutput,
    master: Annotated[str, typer.Option(help=MASTER_HELP)] = "local[2]",
    type: Annotated[
        list[str] | None,
        typer.Option(help="Only operations of this type. Repeatable. Default: all installed."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Spark configuration. Repeatable.")
    ] = None,
    slots: Annotated[
        int,
        typer.Option(min=0, help="Without Spark: threads per operation; 0: processors + 4, at most 32."),
    ] = 0,
    max_operations: Annotated[int, typer.Option(min=1, help="Most concurrent operations.")] = 4,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Serve nothing: look at the workers of this master, say what is wrong there, and end. "
            "Exit code 22 when something is.",
        ),
    ] = False,
    check_store: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="With --check: a folder that workers must read and write. Repeatable."
        ),
    ] = None,
) -> int:
    """Run an executor: a Spark driver that runs the jobs of operations.

    Example: distop executor --master local[4] --conf spark.driver.memory=4g
    """
    if check or check_store:
        return _checked(out, etcd.config(), master, parse_properties(conf or ()), check, check_store or ())
    from distop.executor.runner.options import RunnerOptions
    from distop.executor.runner.service import ExecutorConfig, run

    config = ExecutorConfig(
        etcd=etcd.config(),
        master=master,
        settings=parse_properties(conf or ()),
        types=type or None,
        slots=slots,
        runner=RunnerOptions(max_operations=max_operations, lease_ttl_s=service.lease_ttl),
        metrics=metrics.config(),
    )
    return _ended(out, "executor", run(config))


@command(app, rich_help_panel=PANEL)
def sidecar(
    etcd: Etcd,
    service: Service,
    metrics: ServeMetrics,
    out: WithOutput,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of its socket. Default: where tasks on this host look for it.")
    ] = None,
    idle_exit: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="End when no task has been connected for this long."),
    ] = None,
) -> int:
    """Run a sidecar: it connects the tasks on a worker host to etcd.

    Tasks start one if none runs; a service manager may start it before.
    """
    from distop.executor.sidecar.server import SidecarConfig, run

    config = SidecarConfig(
        etcd=etcd.config(),
        folder=folder,
        lease_ttl_s=service.lease_ttl,
        idle_exit_s=None if idle_exit is None else parse_duration(idle_exit, "idle_exit"),
        metrics=metrics.config(),
    )
    return _ended(out, "sidecar", run(config))


@command(app, rich_help_panel=PANEL)
def dev(
    service: Service,
    out: WithOutput,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Where etcd and the tables live.")] = Path(
        "distop-data"
    ),
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve gRPC; port 0 takes a free one.")
    ] = DEFAULT_ADDRESS,
    web: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve the web page; port 0 takes a free one.")
    ] = "127.0.0.1:7071",
    catalog: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where to serve Iceberg's REST catalog; port 0 takes any."),
    ] = "127.0.0.1:7072",
    master: Annotated[str, typer.Option(help=MASTER_HELP)] = "local[2]",
    etcd_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the embedded etcd; 0 takes a free one.")
    ] = 0,
    landing: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Each subfolder feeds the table of its name. Default: landing, below --data.",
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Use TLS, tokens and a policy; creates certificates and tokens in the folder secure, "
            "below --data.",
        ),
    ] = False,
) -> None:
    """Run everything in this terminal, to try things out: an embedded etcd, a coordinator with its
    web page, an executor, and the landing feed.

    Example: distop dev --data /tmp/distop --master none
    """
    from distop.cli.dev import Dev, DevConfig

    config = DevConfig(
        data=data,
        listen=listen,
        web=web,
        catalog=catalog,
        master=master,
        etcd_port=etcd_port,
        landing=landing,
        lease_ttl_s=service.lease_ttl,
        log_level=service.log_level,
        log_format=service.log_format,
        secure=secure,
    )
    Dev(config, out).run()


def _checked(
    out: Output,
    etcd: EtcdConfig,
    master: str,
    settings: Mapping[str, str],
    check: bool,
    stores: Sequence[str],
) -> int:
    from distop.executor.checking.workers import check as check_workers
    from distop.executor.runner.service import NO_SPARK, require_spark

    if not check:
        raise InvalidArgument("--check-store belongs to --check", details={"field": "check_store"})
    if master == NO_SPARK:
        raise InvalidArgument(
            "without Spark there are no workers to look at",
            hint="name the master that executors are started with",
            details={"field": "master"},
        )
    require_spark(master)
    found = check_workers(etcd, master, settings, stores)
    out.checked(found.workers, found.findings)
    return SOMETHING_WRONG if found.wrong else 0


def _ended(out: Output, service: str, code: int) -> int:
    # The user has read it in the log.
    out.result_for_programs({"service": service, "exit_code": code})
    return code


def end_with(parent: int) -> None:
    """Send SIGTERM to this process when its parent dies."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() != parent:
        raise PreconditionFailed("the parent process ended first")
