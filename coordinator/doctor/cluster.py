"""Whether etcd and the members are healthy. Pure: their reports in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from distop.coordinator.doctor.findings import Finding, key_without_lease, unreadable_record
from distop.coordinator.doctor.reading import Members
from distop.coordinator.views.why import span
from distop.metastore.etcd.health import EtcdHealth, EtcdMember
from distop.metastore.members.registration import far_apart
from distop.proto.identity import own_version

SKEW_S = 5.0
"""Tolerated clock skew between hosts in seconds. A member's key is written within a second or two of the
time in its record, unless etcd was unreachable."""

FULL = 0.8
"""Share of the quota in use that is reported."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")

_NESTED = {(3, 4): (3, 4, 42), (3, 5): (3, 5, 28), (3, 6): (3, 6, 9)}
"""First releases that also check permissions in nested transactions."""

_SAFE = {(3, 4): (3, 4, 44), (3, 5): (3, 5, 33), (3, 6): (3, 6, 14), (3, 7): (3, 7, 1)}
"""First releases with the fixes of all later advisories about permissions."""

_LOSSY = re.compile(r"3\.5\.[0-2](\D|$)")


def check_etcd(health: EtcdHealth) -> list[Finding]:
    """Versions, members, room, alarms."""
    findings: list[Finding] = []
    for member in health.members:
        findings += _etcd_member(member)
        if health.users and (how := _around_permissions(member.version)):
            findings.append(
                Finding(
                    code="ETCD_PERMISSIONS",
                    subject=member.endpoint,
                    sentence=f"etcd at {member.endpoint} is {member.version}, {how}",
                    remedy="use " + ", ".join(map(_dotted, _SAFE.values())) + " or newer; until then let "
                    "only this installation's own processes reach etcd",
                )
            )
    for alarm in health.alarms:
        remedies = {
            "NOSPACE": "make room (etcdctl compact, etcdctl defrag), then: etcdctl alarm disarm",
            "CORRUPT": "members disagree about the data: stop the one that differs and replace it from the "
            "others (etcd's disaster recovery); do not disarm the alarm before",
        }
        findings.append(
            Finding(
                code="ETCD_ALARM",
                subject=alarm,
                sentence=f"etcd has raised the alarm {alarm}: it takes no writes",
                remedy=remedies.get(alarm, "see etcdctl alarm list"),
            )
        )
    return findings


def _around_permissions(version: str) -> str:
    """How users can bypass their roles in this version, if a way is known."""
    if (match := _VERSION.match(version)) is None:
        return ""
    major, minor, patch = map(int, match.groups())
    release = major, minor
    if release > max(_SAFE):
        return ""
    if release < min(_SAFE) or patch < _NESTED.get(release, (0, 0, 0))[2]:
        return "in which nested transactions bypass the permissions of their user"
    if patch < _SAFE[release][2]:
        return "in which users can bypass their permissions in known ways"
    return ""


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def _etcd_member(member: EtcdMember) -> Iterator[Finding]:
    where = member.endpoint
    if member.error:
        yield Finding(
            code="ETCD_MEMBER_AWAY",
            subject=where,
            persists_s=1.0,
            sentence=f"etcd at {where} does not answer: {member.error}",
            remedy="start it, or replace it (etcdctl member remove, member add); "
            "a majority must be left to lose nothing",
        )
        return
    if not member.has_leader:
        yield Finding(
            code="ETCD_WITHOUT_LEADER",
            subject=where,
            persists_s=3.0,
            sentence=f"etcd at {where} has no leader",
            remedy="make sure that a majority of its members run and reach each other",
        )
    if _LOSSY.match(member.version):
        yield Finding(
            code="ETCD_LOSSY_VERSION",
            subject=where,
            sentence=f"etcd at {where} is {member.version}, which can lose acknowledged writes when killed",
            remedy="use 3.4, or 3.5.3 and newer",
        )
    used = member.bytes_used or member.bytes
    if used >= FULL * member.quota:
        known = "" if member.quota_known else " (if it has its default)"
        yield Finding(
            code="ETCD_NEARLY_FULL",
            subject=where,
            sentence=f"etcd at {where} uses {used / 2**20:,.0f} MiB of its quota of "
            f"{member.quota / 2**20:,.0f} MiB{known}: it refuses writes when the quota is used up",
            remedy="set --auto-compaction-retention, or a larger --quota-backend-bytes",
        )
    elif member.bytes >= FULL * member.quota:
        yield Finding(
            code="ETCD_NEARLY_FULL",
            subject=where,
            sentence=f"the database of etcd at {where} has {member.bytes / 2**20:,.0f} of "
            f"{member.quota / 2**20:,.0f} MiB, of which it uses {used / 2**20:,.0f}",
            remedy=f"etcdctl --endpoints={where} defrag, one member after the other",
        )


def check_members(cluster: Members, now: float) -> list[Finding]:
    """Members' keys and clocks.

    Parameters
    ----------
    now:
        Seconds since the Unix epoch, by this host's clock.
    """
    findings = [unreadable_record(key, why) for key, why in cluster.unreadable.items()]
    findings += [key_without_lease(member.kv) for member in cluster.members if not member.kv.lease]
    findings += _clocks(cluster, now)
    findings += _versions(cluster)
    findings += _lost(cluster, now)
    findings += _held_up(cluster, now)
    return findings


def _lost(cluster: Members, now: float) -> Iterator[Finding]:
    """Services that ended without a word. Their records are gone with their leases; their places are not."""
    live = {member.record.id for member in cluster.members}
    for service in (service for service in cluster.places if service.id not in live):
        yield Finding(
            code="MEMBER_LOST",
            subject=f"{service.role} {service.host}",
            sentence=f"{service.id}, which started on {service.host} {span(now - service.started_at)} ago, "
            "has ended or cannot reach etcd",
            remedy=f"start the {service.role} there again if it does not go on by itself; one that is not "
            "wanted any more is forgotten within the hour",
        )


def _held_up(cluster: Members, now: float) -> Iterator[Finding]:
    """What members say of themselves; what they say of single operations is among the tables' findings."""
    for member in cluster.members:
        for obstacle in (obstacle for obstacle in member.record.held_up if not obstacle.operation):
            yield Finding(
                code="MEMBER_HELD_UP",
                subject=f"{member.record.id} {obstacle.since}",
                sentence=f"{member.record.id} is held up for {span(now - obstacle.since)}: {obstacle.what}",
                remedy="remove the cause; nothing is lost, and it goes on, if slowly",
            )


def _versions(cluster: Members) -> Iterator[Finding]:
    """Other members are compared with this coordinator, which is one of them."""
    for member in cluster.members:
        theirs = member.record.distop
        if far_apart(theirs, own_version()):
            yield Finding(
                code="VERSIONS_APART",
                subject=member.record.id,
                sentence=f"{member.record.id} runs distop {theirs}, this coordinator {own_version()}: "
                "they may refuse each other's records",
                remedy="replace the older one; a release runs together only with the one before it",
            )


def _clocks(cluster: Members, now: float) -> Iterator[Finding]:
    """Revisions give the order independently of clocks: a later registration must have a later time."""
    members = [member for member in cluster.members if member.record.started_at]
    members.sort(key=lambda member: member.kv.create_revision)
    skewed: dict[str, tuple[float, str]] = {}
    for index, later in enumerate(members[1:], start=1):
        earlier = max(members[:index], key=lambda member: member.record.started_at)
        ahead = earlier.record.started_at - later.record.started_at
        if ahead > SKEW_S and earlier.record.host != later.record.host:
            hosts = earlier.record.host, later.record.host
            text = f"the clock of {hosts[0]} is {span(ahead)} or more ahead of that of {hosts[1]}"
            skewed[earlier.record.host] = ahead, text
    for member in members:
        ahead = member.record.started_at - now
        if ahead > SKEW_S and ahead > skewed.get(member.record.host, (0.0, ""))[0]:
            text = f"the clock of {member.record.host} is {span(ahead)} or more ahead of this coordinator's"
            skewed[member.record.host] = ahead, text
    for host, (_, text) in sorted(skewed.items()):
        yield Finding(
            code="CLOCK_SKEW",
            subject=host,
            sentence=text,
            remedy="synchronise the clocks: deadlines of operations and times in lists are wrong by as much; "
            "leases and fences are not",
        )
