"""What the doctor says of etcd and of the members, from what they say of themselves."""

import pytest

from distop.coordinator.doctor.cluster import check_etcd, check_members
from distop.coordinator.doctor.reading import Members, ObservedMember
from distop.metastore.etcd.health import EtcdHealth, EtcdMember
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.members.registration import far_apart
from distop.metastore.records.member import HeldUp, MemberRecord
from distop.proto.identity import own_version

NOW = 1_700_000_000.0
WELL = EtcdMember(endpoint="a:1", version="3.5.16", bytes=100, bytes_used=50, quota=1000, quota_known=True)


def codes(*members: EtcdMember, alarms: tuple[str, ...] = ()) -> list[str]:
    return [one.code for one in check_etcd(EtcdHealth(members=members, alarms=alarms))]


def test_an_etcd_that_is_well_gives_no_finding() -> None:
    assert codes(WELL) == []


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("3.5.0", ["ETCD_LOSSY_VERSION"]),
        ("3.5.2", ["ETCD_LOSSY_VERSION"]),
        ("3.5.1-rc.1", ["ETCD_LOSSY_VERSION"]),
        ("3.5.3", []),
        ("3.5.21", []),
        ("3.4.23", []),
        ("3.6.0", []),
    ],
)
def test_versions_that_can_lose_writes_are_told(version: str, found: list[str]) -> None:
    assert codes(EtcdMember(endpoint="a:1", version=version, bytes=1)) == found


@pytest.mark.parametrize(
    ("version", "how"),
    [
        ("3.3.27", "nested transactions"),
        ("3.4.41", "nested transactions"),
        ("3.4.42", "in known ways"),
        ("3.4.44", ""),
        ("3.5.27", "nested transactions"),
        ("3.5.28", "in known ways"),
        ("3.5.33", ""),
        ("3.6.8", "nested transactions"),
        ("3.6.13", "in known ways"),
        ("3.6.14", ""),
        ("3.7.0", "in known ways"),
        ("3.7.1", ""),
        ("3.8.0", ""),
        ("", ""),
        ("unknown", ""),
    ],
)
def test_versions_whose_permissions_can_be_got_around_are_told(version: str, how: str) -> None:
    """S5: only where the installation relies on them."""
    member = EtcdMember(endpoint="a:1", version=version, bytes=1)
    found = check_etcd(EtcdHealth(members=(member,), users=True))
    assert [one.code for one in found] == (["ETCD_PERMISSIONS"] if how else [])
    assert all(how in one.sentence for one in found)
    assert check_etcd(EtcdHealth(members=(member,))) == []


def test_members_that_are_away_or_alone_are_told() -> None:
    away = EtcdMember(endpoint="b:1", error="no answer")
    alone = EtcdMember(endpoint="c:1", version="3.5.16", has_leader=False)
    assert codes(WELL, away, alone) == ["ETCD_MEMBER_AWAY", "ETCD_WITHOUT_LEADER"]


def test_a_database_that_is_nearly_full_is_told_with_what_helps() -> None:
    """O27: NOSPACE, before it happens."""
    used = EtcdMember(endpoint="a:1", version="3.5.16", bytes=900, bytes_used=850, quota=1000)
    loose = EtcdMember(endpoint="a:1", version="3.5.16", bytes=900, bytes_used=50, quota=1000)
    [first] = check_etcd(EtcdHealth(members=(used,)))
    [second] = check_etcd(EtcdHealth(members=(loose,)))
    assert "compaction" in first.remedy
    assert "defrag" in second.remedy


@pytest.mark.parametrize("alarm", ["NOSPACE", "CORRUPT"])
def test_alarms_of_etcd_are_findings(alarm: str) -> None:
    """O27"""
    assert codes(WELL, alarms=(alarm,)) == ["ETCD_ALARM"]


def member(host: str, started_at: float, revision: int, lease: int = 7) -> ObservedMember:
    kv = KeyValue(f"distOp._executors.{host}".encode(), b"", revision, revision, lease)
    return ObservedMember(kv, "executor", MemberRecord(id=host, host=host, started_at=started_at))


def test_clocks_are_compared_by_the_order_of_registration() -> None:
    """Of two members the one that registered later must not name an earlier time."""
    well = Members([member("a", NOW - 50, 5), member("b", NOW - 20, 9), member("c", NOW - 22, 12)])
    assert check_members(well, NOW) == []
    skewed = Members([member("a", NOW - 50, 5), member("b", NOW - 70, 9), member("c", NOW - 48, 12)])
    [found] = check_members(skewed, NOW)
    assert found.code == "CLOCK_SKEW"
    assert found.sentence == "the clock of a is 20 s or more ahead of that of b"


def test_a_member_of_the_future_is_told() -> None:
    [found] = check_members(Members([member("a", NOW + 90, 5)]), NOW)
    assert (found.code, found.subject) == ("CLOCK_SKEW", "a")


def test_a_member_without_a_lease_is_told() -> None:
    [found] = check_members(Members([member("a", NOW - 9, 5, lease=0)]), NOW)
    assert (found.code, found.fix is not None) == ("KEY_WITHOUT_LEASE", True)


@pytest.mark.parametrize(
    ("theirs", "apart"),
    [(1, False), (2, True), (-1, False), (None, False)],
    ids=["the next", "the one after it", "the one before", "does not say"],
)
def test_members_that_are_more_than_one_release_apart_are_told(theirs: int | None, apart: bool) -> None:
    """O21: rolling upgrades go from one release to the next. One that does not say may be any."""
    major, minor = map(int, own_version().split(".")[:2])
    record = MemberRecord(id="m", distop="" if theirs is None else f"{major}.{minor + theirs}.7")
    seen = ObservedMember(KeyValue(b"distOp._executors.m", b"", 5, 5, 7), "executor", record)
    found = check_members(Members([seen]), NOW)
    assert [(one.code, one.subject) for one in found] == ([("VERSIONS_APART", "m")] if apart else [])


def test_releases_are_compared_by_number() -> None:
    assert far_apart("0.2.0", "0.10.0")
    assert far_apart("1.0.0", "2.0.0")
    assert not far_apart("0.9.0", "0.10.3")
    assert not far_apart("unknown", "0.1.0")


def test_a_service_that_is_gone_from_its_place_is_missed() -> None:
    live = member("a", NOW - 50, 5)
    gone = MemberRecord(id="b", role="sidecar", host="h2", started_at=NOW - 60)
    seen = Members([live], places=[live.record, gone])
    [found] = check_members(seen, NOW)
    assert (found.code, found.subject) == ("MEMBER_LOST", "sidecar h2")
    assert found.sentence == "b, which started on h2 1 min ago, has ended or cannot reach etcd"


def test_what_a_member_says_of_itself_is_reported() -> None:
    slow = member("a", NOW - 50, 5)
    of_a_table = HeldUp(operation="t.o.1", what="x", since=NOW - 9)
    slow.record.held_up = [HeldUp(what="etcd is slow", since=NOW - 30), of_a_table]
    [found] = check_members(Members([slow]), NOW)
    assert (found.code, found.sentence) == ("MEMBER_HELD_UP", "a is held up for 30 s: etcd is slow")
