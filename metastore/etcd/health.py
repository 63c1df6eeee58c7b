"""The health of etcd: versions, space, alarms. For operators; nothing else depends on it."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, replace

from aetcd.rpc import rpc_pb2

from distop.errors import DistopError, EtcdDenied
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig

ANSWER_S = 2.0
"""Timeout of one member, in seconds."""

DEFAULT_QUOTA = 2 << 30
"""etcd's default ``--quota-backend-bytes``, if the real one is unknown."""

MAX_PAGE_BYTES = 4 << 20
"""Most bytes read of an HTTP answer."""

_METRICS = {
    "version": re.compile(r'^etcd_server_version\{server_version="([^"]+)"\}', re.MULTILINE),
    "has_leader": re.compile(r"^etcd_server_has_leader ([0-9.eE+]+)$", re.MULTILINE),
    "bytes": re.compile(r"^etcd_mvcc_db_total_size_in_bytes ([0-9.eE+]+)$", re.MULTILINE),
    "bytes_used": re.compile(r"^etcd_mvcc_db_total_size_in_use_in_bytes ([0-9.eE+]+)$", re.MULTILINE),
    "quota": re.compile(r"^etcd_server_quota_backend_bytes ([0-9.eE+]+)$", re.MULTILINE),
}
_ALARMS = {1: "NOSPACE", 2: "CORRUPT"}


@dataclass(frozen=True, kw_only=True)
class EtcdMember:
    """One member, as it reports itself."""

    endpoint: str
    version: str = ""
    has_leader: bool = True
    bytes: int = 0
    """Size of its database."""
    bytes_used: int = 0
    """The part in use; defragmenting releases the rest."""
    quota: int = DEFAULT_QUOTA
    quota_known: bool = False
    error: str = ""
    """Why it did not answer; empty: it did."""


@dataclass(frozen=True)
class MemberStatus:
    """A member's cluster, as etcdctl writes it, and its version."""

    cluster_id: str
    version: str


@dataclass(frozen=True, kw_only=True)
class EtcdHealth:
    """All configured endpoints of this installation."""

    members: tuple[EtcdMember, ...]
    alarms: tuple[str, ...] = ()
    """Names of etcd's alarms: ``NOSPACE``, ``CORRUPT``."""
    users: bool = False
    """Whether this installation relies on the permissions of an etcd user."""


async def read_health(config: EtcdConfig) -> EtcdHealth:
    """Query every configured endpoint; one that does not answer is reported as such."""
    members = await asyncio.gather(*(_member(config, endpoint) for endpoint in config.endpoints))
    answering = tuple(member.endpoint for member in members if not member.error)
    alarms: tuple[str, ...] = ()
    if answering:
        alarms = await _alarms(replace(config, endpoints=answering, timeout_s=ANSWER_S))
    return EtcdHealth(members=tuple(members), alarms=alarms, users=bool(config.user))


async def member_status(client: EtcdClient) -> MemberStatus:
    """The status of the present member. With users, some versions give it to root only."""
    status = await client.maintenance(lambda stub: stub.Status, rpc_pb2.StatusRequest())
    return MemberStatus(f"{status.header.cluster_id:x}", status.version)


async def _member(config: EtcdConfig, endpoint: str) -> EtcdMember:
    client = EtcdClient(replace(config, endpoints=(endpoint,), timeout_s=ANSWER_S))
    metrics = await asyncio.to_thread(_metrics, config, endpoint)
    try:
        status = await client.maintenance(lambda stub: stub.Status, rpc_pb2.StatusRequest())
    except EtcdDenied:
        # Still an answer: some versions give their status to root only.
        return _member_of(endpoint, metrics)
    except DistopError as error:
        return EtcdMember(endpoint=endpoint, error=error.message)
    finally:
        await client.close()
    member = _member_of(endpoint, metrics)
    return replace(
        member,
        version=status.version,
        has_leader=bool(status.leader),
        bytes=status.dbSize,
        bytes_used=status.dbSizeInUse,
    )


def _member_of(endpoint: str, metrics: dict[str, str]) -> EtcdMember:
    """The data in a member's metrics. It restricts them to root where it restricts others."""
    number = {name: int(float(value)) for name, value in metrics.items() if name != "version"}
    quota = number.get("quota", 0)
    return EtcdMember(
        endpoint=endpoint,
        version=metrics.get("version", ""),
        has_leader=bool(number.get("has_leader", 1)),
        bytes=number.get("bytes", 0),
        bytes_used=number.get("bytes_used", 0),
        quota=quota or DEFAULT_QUOTA,
        quota_known=bool(quota),
    )


async def _alarms(config: EtcdConfig) -> tuple[str, ...]:
    client = EtcdClient(config)
    try:
        reply = await client.maintenance(lambda stub: stub.Alarm, rpc_pb2.AlarmRequest())
    except EtcdDenied:
        return await asyncio.to_thread(_alarms_of_health, config)
    except DistopError:
        return ()
    finally:
        await client.close()
    return tuple(sorted({_ALARMS.get(alarm.alarm, f"alarm {alarm.alarm}") for alarm in reply.alarms}))


def _alarms_of_health(config: EtcdConfig) -> tuple[str, ...]:
    """The alarms that members report in their health check, which needs no user."""
    alarms: set[str] = set()
    for endpoint in config.endpoints:
        try:
            reason = str(json.loads(_page(config, endpoint, "health")).get("reason", ""))
        except (ValueError, AttributeError):
            continue
        alarms.update(name for name in _ALARMS.values() if name in reason)
    return tuple(sorted(alarms))


def _metrics(config: EtcdConfig, endpoint: str) -> dict[str, str]:
    """The metrics of a member that describe its health; without missing ones."""
    page = _page(config, endpoint, "metrics")
    metrics = ((name, pattern.search(page)) for name, pattern in _METRICS.items())
    return {name: match[1] for name, match in metrics if match}


def _page(config: EtcdConfig, endpoint: str, path: str) -> str:
    """A member's answer over HTTP, also if it is unhealthy; empty: none."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    try:
        if config.tls:
            context = ssl.create_default_context(cafile=config.ca_cert or None)
            if config.cert:
                context.load_cert_chain(config.cert, config.key)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        url = f"{'https' if config.tls else 'http'}://{endpoint}/{path}"
        with urllib.request.build_opener(*handlers).open(url, timeout=ANSWER_S) as answer:
            return str(answer.read(MAX_PAGE_BYTES).decode())
    except urllib.error.HTTPError as error:
        return error.read(MAX_PAGE_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""
