"""Options for the metrics of an executor and a sidecar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from distop.cli.options.bundles import Bundle

if TYPE_CHECKING:
    from distop.executor.host.metrics import MetricsConfig

PANEL = "Metrics"


@dataclass(frozen=True)
class MetricsOptions:
    """Where and how metrics are served."""

    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to serve /metrics, /livez and /readyz, without authentication.",
            rich_help_panel=PANEL,
        ),
    ] = None
    tls_cert: Annotated[
        str,
        typer.Option(
            metavar="PEM", help="Certificate of the metrics server. Enables TLS.", rich_help_panel=PANEL
        ),
    ] = ""
    tls_key: Annotated[str, typer.Option(metavar="PEM", help="And its key.", rich_help_panel=PANEL)] = ""
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Serve in plain text also to other hosts.", rich_help_panel=PANEL),
    ] = False

    def config(self) -> MetricsConfig | None:
        if self.metrics is None:
            return None
        from distop.executor.host.metrics import MetricsConfig
        from distop.proto.http.tls import TlsConfig

        tls = TlsConfig(cert=self.tls_cert, key=self.tls_key, insecure=self.insecure)
        return MetricsConfig(listen=self.metrics, tls=tls)


ServeMetrics = Annotated[MetricsOptions, Bundle(MetricsOptions)]
