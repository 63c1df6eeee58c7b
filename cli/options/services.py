"""Options of the commands that run a service: etcd, leases, logs, and what callers may read and write."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from distop.cli.options.bundles import Bundle
from distop.cli.output.logs import Level, LogFormat, configure
from distop.errors import PreconditionFailed

if TYPE_CHECKING:
    from distop.metastore.etcd.config import EtcdConfig


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


def end_with(parent: int) -> None:
    """Send SIGTERM to this process when its parent dies."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() != parent:
        raise PreconditionFailed("the parent process ended first")
