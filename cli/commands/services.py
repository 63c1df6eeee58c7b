"""The programs that run in the foreground: coordinator, executor, sidecar, landing feed, or all of them."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_duration, parse_properties
from distop.cli.options.services import Access, Allow, CallerLimits, Etcd, Logs, ServeMetrics, Service
from distop.cli.options.session import DEFAULT_ADDRESS, Connected, WithOutput
from distop.cli.output.base import Output
from distop.cli.output.exits import SOMETHING_WRONG
from distop.errors import DistopError, InvalidArgument, require
from distop.metastore.etcd.config import EtcdConfig

if TYPE_CHECKING:
    from distop.landing.folder import LandingReport


app = typer.Typer()

BEGIN, PANEL = "Begin", "Programs"
"""The panels of the help: what somebody begins with, and the rest."""

MASTER_HELP = "Spark master, such as local[2]; none: jobs run in threads, without Spark."


@command(app, rich_help_panel=PANEL)
def coordinator(
    etcd: Etcd,
    service: Service,
    allow: Allow,
    access: Access,
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
    call_timeout: Annotated[
        str,
        typer.Option(metavar="DURATION", help="End user code that runs for this long without a heartbeat."),
    ] = "10m",
    remember_runs: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the runs of requests are remembered.")
    ] = "7d",
) -> int:
    """Run a coordinator: serve gRPC, and lead tables that have work.

    Example: distop coordinator --allow-source s3://landing/ --allow-location s3://tables/
    """
    from distop.coordinator.service import CoordinatorConfig, run

    config = CoordinatorConfig(
        etcd=etcd.config(),
        listen=listen,
        web=web,
        identity=access.identity(),
        catalog=catalog,
        warehouse=warehouse,
        tls=access.tls(access.tls_client_ca),
        lease_ttl_s=service.lease_ttl,
        call_timeout_s=parse_duration(call_timeout, "call_timeout"),
        remember_runs_s=parse_duration(remember_runs, "remember_runs"),
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

    Example: distop sidecar --etcd 127.0.0.1:2379 --idle-exit 10m
    """
    from distop.executor.sidecar.server import SidecarConfig, run

    config = SidecarConfig(
        etcd=etcd.config(),
        folder=folder,
        lease_ttl_s=service.lease_ttl,
        idle_exit_s=parse_duration(idle_exit, "idle_exit"),
        metrics=metrics.config(),
    )
    return _ended(out, "sidecar", run(config))


@command(app, rich_help_panel=BEGIN)
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


@command(app, rich_help_panel=PANEL)
def mcp(session: Connected) -> None:
    """Serve the Model Context Protocol on stdin and stdout, for an assistant: it reads tables, operations and
    findings, and previews operations. It changes nothing.

    The assistant starts it: name it this command, and DISTOP_ADDRESS and DISTOP_TOKEN_FILE for its
    environment. Needs the extra mcp.

    Example: distop mcp --address 127.0.0.1:7070
    """
    require("mcp", "mcp", "distop mcp")
    from distop.cli.mcp_server import serve

    serve(session)


def _checked(
    out: Output,
    etcd: EtcdConfig,
    master: str,
    settings: Mapping[str, str],
    check: bool,
    stores: Sequence[str],
) -> int:
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
    from distop.executor.checking.spark_setup import check as check_workers  # loads pyspark

    result = check_workers(etcd, master, settings, stores)
    out.checked(result.workers, result.findings)
    return SOMETHING_WRONG if result.wrong else 0


def _ended(out: Output, service: str, code: int) -> int:
    # The user has read it in the log.
    out.result_for_programs({"service": service, "exit_code": code})
    return code


OnChanged: TypeAlias = Literal["say", "replace"]


@command(app, rich_help_panel=PANEL)
def landing(
    logs: Logs,
    session: Connected,
    url: Annotated[str, typer.Argument(metavar="URL", help="The folder: a path, s3://bucket/folder, ...")],
    table: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="The table that it feeds; folders above URL are ignored. Without: each folder "
            "in it feeds the table of its name.",
        ),
    ] = None,
    type: Annotated[str, typer.Option(metavar="TYPE", help="The operation that applies a batch.")] = "ingest",
    on_changed: Annotated[
        OnChanged,
        typer.Option(
            help="Of a batch that is written again after it was applied: say so, or replace its rows, once "
            "for each _SUCCESS."
        ),
    ] = "say",
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often to look.")] = "5s",
    once: Annotated[bool, typer.Option("--once", help="Look once, print what was found, and exit.")] = False,
) -> int:
    """Publish the batches of a landing folder: every folder below it with a _SUCCESS file.

    Runs until SIGTERM or Ctrl-C; may be killed and started again at any time. A problem in the folder is
    logged once; with --once the exit code is then 22.

    Example: distop landing s3://bucket/flights --table flights --on-changed replace
    """
    from distop.landing.folder import Landing, Landings

    pause = parse_duration(every, "every")
    how: Any = {"type": type, "replace": on_changed == "replace"}
    single = Landing(session.client, table, url, **how) if table is not None else None
    several = Landings(session.client, url, **how)

    def look() -> dict[str, LandingReport]:
        return {table: single.poll()} if single is not None and table is not None else several.poll()

    if once:
        reports = look()
        for name, report in reports.items():
            session.out.facts(f"landing of {name or url}", {"table": name, **dataclasses.asdict(report)})
        return SOMETHING_WRONG if any(report.problems for report in reports.values()) else 0
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    session.out.note(f"feeding {table or 'tables'} from {url}, looking every {pause:g} s")
    while not stop.is_set():
        try:
            look()
        except DistopError as error:
            if not error.retryable:
                raise
            session.out.note(f"{error.code}: {error.message}; retrying")
        stop.wait(pause)
    return 0
