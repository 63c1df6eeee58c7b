"""Commands that run a service in the foreground: coordinator, executor, sidecar, dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distop.cli.options.bundles import command
from distop.cli.options.doors import Doors
from distop.cli.options.limits import CallerLimits
from distop.cli.options.metrics import ServeMetrics
from distop.cli.options.parsing import parse_duration, parse_properties
from distop.cli.options.services import Allow, Etcd, Service
from distop.cli.options.session import DEFAULT_ADDRESS, WithOutput
from distop.cli.output.base import Output
from distop.cli.output.exits import SOMETHING_WRONG
from distop.errors import InvalidArgument

if TYPE_CHECKING:
    from distop.metastore.etcd.config import EtcdConfig

app = typer.Typer()

PANEL = "Services"

MASTER_HELP = "Spark master, such as local[2]; none: jobs run in threads, without Spark."


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
    max_commit_attempts: Annotated[str | None, typer.Option(hidden=True)] = None,
    call_timeout: Annotated[
        str,
        typer.Option(metavar="DURATION", help="End user code that runs for this long without a heartbeat."),
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

    if max_commit_attempts is not None:
        raise InvalidArgument(
            "--max-commit-attempts no longer exists: operations are tried again for a time",
            hint="leave it out, and set retry of the type, or --retry-for of a start",
            details={"field": "max_commit_attempts"},
        )
    config = CoordinatorConfig(
        etcd=etcd.config(),
        listen=listen,
        web=web,
        identity=doors.identity(),
        catalog=catalog,
        warehouse=warehouse,
        tls=doors.tls(),
        lease_ttl_s=service.lease_ttl,
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
