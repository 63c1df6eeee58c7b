"""Versions of distop that may run together.

A release understands the records of the one before it, and vice versa, so that members can be replaced one at
a time. Versions further apart may refuse each other's records.
"""

from __future__ import annotations

import logging
import re

from distop.errors import CorruptRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.records.components import prefix_end
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.record import decode
from distop.proto.identity import own_version

log = logging.getLogger(__name__)

_RELEASE = re.compile(r"(\d+)\.(\d+)")
MOST = 200
"""Members of a kind that are checked, at the start of one."""


def far_apart(one: str, other: str) -> bool:
    """Whether two versions are more than one release apart. Unknown for an invalid version."""
    found = _RELEASE.match(one), _RELEASE.match(other)
    if found[0] is None or found[1] is None:
        return False
    (major, minor), (major_too, minor_too) = (tuple(map(int, match.groups())) for match in found if match)
    return major != major_too or abs(minor - minor_too) > 1


async def tell_if_apart(client: EtcdClient) -> None:
    """Log which members are too old, or too new, to run together with this one."""
    space = client.keyspace
    for prefix in (space.coordinators, space.executors):
        page = await client.get_range(prefix, prefix_end(prefix), limit=MOST)
        for kv in page.kvs:
            try:
                member = decode(kv.value, MemberRecord, kv.key)
            except CorruptRecord as error:
                log.warning("version_not_known", extra={"key": repr(kv.key), "error": str(error)})
                continue
            if far_apart(member.distop, own_version()):
                fields = {"member": member.id, "version": member.distop, "own": own_version()}
                log.warning("version_far_apart", extra=fields)
