"""``distop alert``: what fails, is parked, blocked or late, and its delivery to a webhook."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_duration
from distop.cli.options.services import Etcd, Service
from distop.cli.options.session import WithOutput
from distop.coordinator.alerts.alerting import AlertingConfig, current_alerts
from distop.coordinator.alerts.alerting import run as send_alerts
from distop.coordinator.alerts.conditions import Lateness
from distop.coordinator.alerts.webhook import Webhook
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.table import AlertRecord
from distop.process.secret import Secret

group = typer.Typer()

LateAfter = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TABLE=]DURATION",
        help="Alert when the watermarks of a table, or of any, have not moved for this long. Repeatable. "
        "Default: never.",
    ),
]


@command(group)
def run(
    etcd: Etcd,
    service: Service,
    webhook: Annotated[
        str,
        typer.Option(
            metavar="URL", envvar="DISTOP_ALERT_WEBHOOK", help="Where each alert is sent, as a POST of JSON."
        ),
    ],
    token_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            envvar="DISTOP_ALERT_TOKEN_FILE",
            help="File with a token for the webhook, sent as a bearer; read again when it changes.",
        ),
    ] = "",
    late_after: LateAfter = None,
    page: Annotated[
        str, typer.Option(metavar="URL", help="The web page of a coordinator, for the link in each alert.")
    ] = "",
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often to look.")] = "30s",
) -> None:
    """Send an alert when an operation has failed or is parked, a batch blocks its table, or a watermark is
    late; and another one when that has ended.

    Runs until SIGTERM or Ctrl-C; may be killed and started again at any time: each alert is sent at least
    once. Run one. Connects to etcd directly. Failures are those since it was started for the first time.

    Example: distop alert run --webhook https://hooks.example/distop --late-after 24h --late-after flights=1h
    """
    config = AlertingConfig(
        etcd=etcd.config(),
        lateness=_lateness(late_after or ()),
        every_s=parse_duration(every, "every"),
        page=page,
    )
    send_alerts(config, Webhook(Secret(webhook), token_file))


@command(group, "list")
def list_alerts(etcd: Etcd, out: WithOutput, late_after: LateAfter = None) -> None:
    """Show the alerts that stand, the oldest first, and when each was sent.

    Connects to etcd directly. Failures are in it once they were sent, until the next success; late watermarks
    only with --late-after.

    Example: distop alert list --etcd 127.0.0.1:2379 --late-after 24h
    """
    alerts = asyncio.run(_current(etcd.config(), _lateness(late_after or ())))
    out.listed("alerts", [_shown(alert) for alert in alerts], 0)
    if not late_after:
        out.note("late watermarks are not looked for: add --late-after 24h")


async def _current(config: EtcdConfig, lateness: Lateness) -> list[AlertRecord]:
    client = EtcdClient(config)
    try:
        return await current_alerts(client, lateness)
    finally:
        await client.close()


def _lateness(limits: Sequence[str]) -> Lateness:
    default_s, tables = None, dict[str, float]()
    for text in limits:
        table, equals, duration = text.rpartition("=")
        if equals:
            tables[table] = parse_duration(duration, "late_after")
        else:
            default_s = parse_duration(duration, "late_after")
    return Lateness(default_s, tables)


def _shown(alert: AlertRecord) -> dict[str, Any]:
    def at(seconds: float) -> datetime | None:
        return datetime.fromtimestamp(seconds, UTC) if seconds else None

    return {
        "kind": alert.kind,
        "table": alert.table,
        "operation": alert.operation,
        "batch": alert.batch,
        "since": at(alert.since),
        "sent_at": at(alert.delivered_at),
        "code": alert.code,
        "message": alert.message,
        "command": alert.command,
    }
