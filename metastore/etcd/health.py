"""How etcd itself is: versions, room, alarms. For operators; nothing else depends on it."""

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
"""Seconds that one member may take to answer."""

DEFAULT_QUOTA = 2 << 30
"""etcd's own ``--quota-backend-bytes``, where nothing else can be learnt."""

MAX_PAGE_BYTES = 4 << 20
"""What is read of an answer over HTTP."""

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
    """One member, as it answers for itself."""

    endpoint: str
    version: str = ""
    has_leader: bool = True
    bytes: int = 0
    """Size of its database."""
    bytes_used: int = 0
    """What of that is in use; the rest is given back by defragmenting."""
    quota: int = DEFAULT_QUOTA
    quota_known: bool = False
    error: str = ""
    """Why it did not answer; empty: it did."""


@dataclass(frozen=True)
class MemberStatus:
    """Of which cluster a member is, as etcdctl writes it, and which version it runs."""

    cluster_id: str
    version: str


@dataclass(frozen=True, kw_only=True)
class EtcdHealth:
    """All endpoints that this installation is configured with."""

    members: tuple[EtcdMember, ...]
    alarms: tuple[str, ...] = ()
    """``NOSPACE``, ``CORRUPT``."""
    users: bool = False
    """Whether this installation relies on the permissions of an etcd user."""


async def read_health(config: EtcdConfig) -> EtcdHealth:
    """Ask every endpoint of a configuration; one that does not answer is reported as such."""
    members = await asyncio.gather(*(_member(config, endpoint) for endpoint in config.endpoints))
    answering = tuple(member.endpoint for member in members if not member.error)
    alarms: tuple[str, ...] = ()
    if answering:
        alarms = await _alarms(replace(config, endpoints=answering, timeout_s=ANSWER_S))
    return EtcdHealth(members=tuple(members), alarms=alarms, users=bool(config.user))


async def member_status(client: EtcdClient) -> MemberStatus:
    """What the member that is used at present says of itself. With users, some versions tell root only."""
    status = await client.maintenance(lambda stub: stub.Status, rpc_pb2.StatusRequest())
    return MemberStatus(f"{status.header.cluster_id:x}", status.version)


async def _member(config: EtcdConfig, endpoint: str) -> EtcdMember:
    client = EtcdClient(replace(config, endpoints=(endpoint,), timeout_s=ANSWER_S))
    metrics = await asyncio.to_thread(_metrics, config, endpoint)
    try:
        status = await client.maintenance(lambda stub: stub.Status, rpc_pb2.StatusRequest())
    except EtcdDenied:
        # An answer all the same: some versions give their status to root only.
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
    """What a member tells among its metrics. It keeps them for root where it keeps other things."""
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
    return tuple(sorted({_ALARMS.get(one.alarm, f"alarm {one.alarm}") for one in reply.alarms}))


def _alarms_of_health(config: EtcdConfig) -> tuple[str, ...]:
    """What members say of alarms when they are asked whether they are healthy, which needs no user."""
    found: set[str] = set()
    for endpoint in config.endpoints:
        try:
            reason = str(json.loads(_page(config, endpoint, "health")).get("reason", ""))
        except (ValueError, AttributeError):
            continue
        found.update(name for name in _ALARMS.values() if name in reason)
    return tuple(sorted(found))


def _metrics(config: EtcdConfig, endpoint: str) -> dict[str, str]:
    """The metrics of a member that say how it is; without those that it does not tell."""
    page = _page(config, endpoint, "metrics")
    found = ((name, pattern.search(page)) for name, pattern in _METRICS.items())
    return {name: match[1] for name, match in found if match}


def _page(config: EtcdConfig, endpoint: str, path: str) -> str:
    """What a member answers over HTTP, also where it says that it is not well; empty: nothing."""
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
