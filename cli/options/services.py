"""Options of the commands that run a service: etcd, logs, who may come in, what callers may do, metrics."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from distop.cli.options.bundles import Bundle
from distop.errors import InvalidArgument, PreconditionFailed
from distop.metastore.etcd.config import EtcdConfig
from distop.process.logs import Level, LogFormat, configure

if TYPE_CHECKING:
    from distop.coordinator.access.authentication import IdentityConfig
    from distop.coordinator.access.tokens import IssuerConfig
    from distop.coordinator.api.calls import Limits
    from distop.executor.host.metrics import MetricsConfig
    from distop.process.tls import TlsConfig


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
        given = {
            "DISTOP_ETCD": self.etcd,
            "DISTOP_PREFIX": self.prefix,
            "DISTOP_ETCD_USER": self.etcd_user,
            "DISTOP_ETCD_PASSWORD_FILE": self.etcd_password_file,
            "DISTOP_ETCD_CACERT": self.etcd_cacert,
            "DISTOP_ETCD_CERT": self.etcd_cert,
            "DISTOP_ETCD_KEY": self.etcd_key,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        return EtcdConfig.from_env({**os.environ, **chosen})


@dataclass(frozen=True)
class LogOptions:
    """The options of every program. Making it configures the logs of this process."""

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
class ServiceOptions(LogOptions):
    """The options of every service, which holds leases."""

    lease_ttl: Annotated[
        int,
        typer.Option(
            min=2,
            metavar="SECONDS",
            help="Time to live of leases: a dead process loses what it holds after it.",
        ),
    ] = 5


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
        from distop.lake.storage import allowed

        allowed.allow(allowed.SOURCES, self.allow_source or ())
        allowed.allow(allowed.LOCATIONS, self.allow_location or ())
        allowed.allow(allowed.ENDPOINTS, self.allow_endpoint or ())
        allowed.restrict()


Etcd = Annotated[EtcdOptions, Bundle(EtcdOptions)]
Logs = Annotated[LogOptions, Bundle(LogOptions)]
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


@dataclass(frozen=True)
class TlsOptions:
    """How a program serves with TLS."""

    tls_cert: Annotated[
        str, typer.Option(metavar="PEM", help="Certificate of all that is served here. Enables TLS.")
    ] = ""
    tls_key: Annotated[str, typer.Option(metavar="PEM", help="And its key.")] = ""
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Serve in plain text also to other hosts."),
    ] = False

    def tls(self, client_ca: str = "") -> TlsConfig:
        from distop.process.tls import TlsConfig

        return TlsConfig(cert=self.tls_cert, key=self.tls_key, client_ca=client_ca, insecure=self.insecure)


@dataclass(frozen=True)
class AccessOptions(TlsOptions):
    """How a coordinator identifies callers."""

    admin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SUBJECT",
            help="First admin of identified callers, where no policy exists yet: creates one. Repeatable.",
        ),
    ] = None
    token_file: Annotated[
        str, typer.Option(metavar="FILE", help="Accepted tokens: lines of SUBJECT:SHA256[:GROUP,...].")
    ] = ""
    issuer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]URL", help="Issuer of accepted signed tokens; several need names. Repeatable."
        ),
    ] = None
    audience: Annotated[
        str, typer.Option(metavar="TEXT", help="Audience (aud) that signed tokens must have.")
    ] = ""
    jwks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE|URL", help="URL of an issuer's keys, if it does not publish one. Repeatable."
        ),
    ] = None
    issuer_ca: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]PEM", help="CA of the host that serves an issuer's keys. Repeatable."),
    ] = None
    issuer_token_file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE", help="Token for the host that serves an issuer's keys. Repeatable."
        ),
    ] = None
    tls_client_ca: Annotated[
        str,
        typer.Option(metavar="PEM", help="CA of client certificates: every gRPC client must present one."),
    ] = ""

    def identity(self) -> IdentityConfig:
        from distop.coordinator.access.authentication import IdentityConfig

        return IdentityConfig(
            admins=tuple(self.admin or ()),
            token_file=self.token_file,
            issuers=self._issuers(),
            certificates=bool(self.tls_client_ca),
        )

    def _issuers(self) -> tuple[IssuerConfig, ...]:
        from distop.coordinator.access.tokens import IssuerConfig

        if self.issuer and not self.audience:
            raise InvalidArgument(
                "an issuer signs tokens for many services: name the audience of this one",
                hint="give --audience",
                details={"field": "audience"},
            )
        issuers = _by_name("issuer", self.issuer)

        def of_issuers(field: str, given: list[str] | None) -> dict[str, str]:
            named = _by_name(field, given)
            if unknown := sorted(named.keys() - issuers.keys()):
                raise InvalidArgument(
                    f"it names {unknown[0] or 'an issuer without a name'}, which is not an --issuer",
                    details={"field": field},
                )
            return named

        jwks = of_issuers("jwks", self.jwks)
        cas = of_issuers("issuer_ca", self.issuer_ca)
        tokens = of_issuers("issuer_token_file", self.issuer_token_file)
        return tuple(
            IssuerConfig(
                url=url,
                audience=self.audience,
                name=name,
                jwks=jwks.get(name, ""),
                ca=cas.get(name, ""),
                token_file=tokens.get(name, ""),
            )
            for name, url in issuers.items()
        )


def _by_name(field: str, given: list[str] | None) -> dict[str, str]:
    """The values of ``NAME=VALUE``, or of a value without a name: a name has none of the signs of a URL or
    path."""
    named: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or set(name) & set("/:.?"):
            name, value = "", text
        if name in named:
            raise InvalidArgument(
                f"{name or 'an issuer without a name'} is given twice",
                hint="give each issuer a name of its own: NAME=VALUE",
                details={"field": field},
            )
        named[name] = value
    return named


Access = Annotated[AccessOptions, Bundle(AccessOptions, panel="Who may come in")]


@dataclass(frozen=True)
class LimitOptions:
    """A larger value is refused as BUSY."""

    caller_calls: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Concurrent calls of one caller."),
    ] = 1_000
    caller_streams: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Open streams of one caller."),
    ] = 2_000
    caller_starts: Annotated[
        float,
        typer.Option(
            min=0.01,
            metavar="N",
            help="Operations, previews, batches and tables that one caller may begin a second; twice as many "
            "at once.",
        ),
    ] = 500.0
    all_calls: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Concurrent calls of all callers."),
    ] = 4_000
    all_streams: Annotated[int, typer.Option(min=1, metavar="N", help="Open streams of all callers.")] = 8_000

    def limits(self) -> Limits:
        from distop.coordinator.api.calls import Limits

        return Limits(
            calls_each=self.caller_calls,
            calls=self.all_calls,
            streams_each=self.caller_streams,
            streams=self.all_streams,
            starts_per_s=self.caller_starts,
        )


CallerLimits = Annotated[LimitOptions, Bundle(LimitOptions, panel="How much callers may ask for")]


@dataclass(frozen=True)
class MetricsOptions(TlsOptions):
    """Where and how metrics are served."""

    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where to serve /metrics, /livez and /readyz, without authentication."
        ),
    ] = None

    def config(self) -> MetricsConfig | None:
        if self.metrics is None:
            return None
        from distop.executor.host.metrics import MetricsConfig

        return MetricsConfig(listen=self.metrics, tls=self.tls())


ServeMetrics = Annotated[MetricsOptions, Bundle(MetricsOptions, panel="Metrics")]
