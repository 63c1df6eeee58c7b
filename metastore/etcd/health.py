"""How etcd itself is: versions, room, alarms. For operators; nothing else depends on it."""

from __future__ import annotations

import asyncio
import re
import ssl
import urllib.request
from dataclasses import dataclass, replace

from aetcd.rpc import rpc_pb2

from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig

ANSWER_S = 2.0
"""Seconds that one member may take to answer."""

DEFAULT_QUOTA = 2 << 30
"""etcd's own ``--quota-backend-bytes``, where nothing else can be learnt."""

_QUOTA = re.compile(rb"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)
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


@dataclass(frozen=True, kw_only=True)
class EtcdHealth:
    """All endpoints that this installation is configured with."""

    members: tuple[EtcdMember, ...]
    alarms: tuple[str, ...] = ()
    """``NOSPACE``, ``CORRUPT``."""


async def read_health(config: EtcdConfig) -> EtcdHealth:
    """Ask every endpoint of a configuration; one that does not answer is reported as such."""
    members = await asyncio.gather(*(_member(config, endpoint) for endpoint in config.endpoints))
    answering = tuple(member.endpoint for member in members if not member.error)
    alarms: tuple[str, ...] = ()
    if answering:
        alarms = await _alarms(replace(config, endpoints=answering, timeout_s=ANSWER_S))
    return EtcdHealth(members=tuple(members), alarms=alarms)


async def _member(config: EtcdConfig, endpoint: str) -> EtcdMember:
    client = EtcdClient(replace(config, endpoints=(endpoint,), timeout_s=ANSWER_S))
    try:
        status = await client.maintenance(lambda stub: stub.Status, rpc_pb2.StatusRequest())
    except DistopError as error:
        return EtcdMember(endpoint=endpoint, error=error.message)
    finally:
        await client.close()
    quota = await asyncio.to_thread(_quota, config, endpoint)
    return EtcdMember(
        endpoint=endpoint,
        version=status.version,
        has_leader=bool(status.leader),
        bytes=status.dbSize,
        bytes_used=status.dbSizeInUse,
        quota=quota or DEFAULT_QUOTA,
        quota_known=bool(quota),
    )


async def _alarms(config: EtcdConfig) -> tuple[str, ...]:
    client = EtcdClient(config)
    try:
        reply = await client.maintenance(lambda stub: stub.Alarm, rpc_pb2.AlarmRequest())
    except DistopError:
        return ()  # etcds with users may keep it from us
    finally:
        await client.close()
    return tuple(sorted({_ALARMS.get(one.alarm, f"alarm {one.alarm}") for one in reply.alarms}))


def _quota(config: EtcdConfig, endpoint: str) -> int:
    """The quota of a member's database, which it tells among its metrics only; 0: it does not."""
    context = None
    if config.tls:
        context = ssl.create_default_context(cafile=config.ca_cert or None)
        if config.cert:
            context.load_cert_chain(config.cert, config.key)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    url = f"{'https' if config.tls else 'http'}://{endpoint}/metrics"
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=ANSWER_S) as answer:
            found = _QUOTA.search(answer.read())
            return int(float(found[1])) if found else 0
    except (OSError, ValueError):
        return 0
