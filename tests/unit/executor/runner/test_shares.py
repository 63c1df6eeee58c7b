"""The executors of a type divide what waits: all of it, and nothing twice."""

import pytest

from distop.executor.runner.waiting import NOTHING, Shares, piece_of
from distop.metastore.etcd.client import Listing
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.etcd.watch import KeyEvent, WatchBatch
from distop.metastore.records.keyspace import SHARES, Keyspace
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import encode

SPACE = Keyspace()
OPERATIONS = [OperationId(f"t{number % 40}", "noop", number + 1) for number in range(400)]


def member(name: str, *types: str, only: str = "", lease: int = 1) -> KeyValue:
    record = MemberRecord(id=name, types=list(types), only=only)
    return KeyValue(SPACE.executor(name), encode(record), 1, 1, lease)


def divided(*members: KeyValue, types: tuple[str, ...] = ("noop",)) -> dict[str, Shares]:
    """What each of them, as far as it is one of these types, knows."""
    made = {}
    for kv in members:
        name = kv.key.removeprefix(SPACE.executors).decode()
        made[name] = Shares(SPACE, name, types)
        made[name].apply(Listing(list(members), 1))
    return made


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 100])
def test_each_share_is_looked_after_by_one(count: int) -> None:
    names = [f"m{number}" for number in range(count)]
    pieces = [piece_of(name, reversed(names)) for name in sorted(names)]
    assert [piece.end for piece in pieces] == [piece.first for piece in pieces[1:]] + [SHARES]
    assert max(piece.end - piece.first for piece in pieces) <= SHARES // count + 1


def test_each_operation_is_looked_after_by_one_and_all_have_some() -> None:
    shares = divided(*(member(f"m{number}", "noop") for number in range(4)))
    holders = [[name for name, one in shares.items() if one.hold(operation)] for operation in OPERATIONS]
    assert all(len(found) == 1 for found in holders)
    assert {name for (name,) in holders} == set(shares)


def test_waiting_operations_of_a_share_lie_in_its_range_of_keys() -> None:
    for shares in divided(*(member(f"m{number}", "noop") for number in range(3))).values():
        first, end = (SPACE.waiting_from(share) for share in shares.hull)
        inside = [one for one in OPERATIONS if first <= SPACE.waiting_operation(one) < end]
        assert inside == [one for one in OPERATIONS if shares.hold(one)]


def test_sidecars_executors_of_one_operation_and_keys_that_nobody_renews_have_no_piece() -> None:
    others = member("sidecar"), member("hosted", "noop", only="t/noop/1"), member("left", "noop", lease=0)
    shares = divided(member("m", "noop"), *others)
    assert all(shares["m"].hold(operation) for operation in OPERATIONS)
    assert not shares["m"].divided
    assert shares["hosted"].hull == NOTHING


def test_types_are_divided_among_those_that_serve_them() -> None:
    both, one = member("a", "noop", "other"), member("b", "noop")
    shares = divided(both, one, types=("noop", "other"))
    other = [OperationId("t", "other", number) for number in range(1, 100)]
    assert all(shares["a"].hold(operation) for operation in other)
    assert not any(shares["b"].hold(operation) for operation in other)
    assert any(shares["b"].hold(operation) for operation in OPERATIONS)


def test_the_shares_of_one_that_ended_go_to_the_others() -> None:
    standing, ended = member("a", "noop"), member("b", "noop")
    shares = divided(standing, ended)["a"]
    assert not all(shares.hold(operation) for operation in OPERATIONS)
    shares.apply(WatchBatch(2, [KeyEvent("delete", KeyValue(ended.key, b"", 2, 0))]))
    assert all(shares.hold(operation) for operation in OPERATIONS)
