"""Which tables are to be looked at: by the clock, and by the revisions of heads."""

from collections.abc import Callable

from distop.coordinator.schedules.due import AGAIN_S
from distop.coordinator.schedules.timekeeping import Agenda
from distop.metastore.etcd.client import Listing
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.etcd.watch import KeyEvent, WatchBatch
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.record import encode
from distop.metastore.tables.schedules import AgendaRecord

SPACE = Keyspace()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def kv(table: str, **fields: object) -> KeyValue:
    record = AgendaRecord(**fields)  # type: ignore[arg-type]
    return KeyValue(SPACE.table(table).agenda, encode(record), 1, 1)


def agenda_of(clock: Clock, *kvs: KeyValue, mine: Callable[[str], bool] = lambda _: True) -> Agenda:
    agenda = Agenda(SPACE, clock, mine)
    assert agenda.apply(Listing(list(kvs), 1)) is None
    return agenda


def put(agenda: Agenda, one: KeyValue) -> set[str] | None:
    return agenda.apply(WatchBatch(2, [KeyEvent("put", one)]))


def test_tables_fall_due_at_their_times() -> None:
    clock = Clock()
    agenda = agenda_of(clock, kv("a", due=0.0), kv("b.c", due=1010.0), kv("d", due=1005.0), kv("e"))
    assert list(agenda.fall_due()) == ["a"]
    assert agenda.wait_s(30.0) == 5.0
    clock.now = 1005.0
    assert list(agenda.fall_due()) == ["a", "d"]
    assert put(agenda, kv("a", due=5000.0)) == {"a"}
    assert list(agenda.fall_due()) == ["d"]
    clock.now = 1010.0
    assert list(agenda.fall_due()) == ["d", "b.c"]
    assert agenda.wait_s(30.0) == 30.0
    agenda.apply(WatchBatch(3, [KeyEvent("delete", KeyValue.missing(SPACE.table("d").agenda))]))
    assert list(agenda.fall_due()) == ["b.c"]


def test_a_clock_that_is_set_back_makes_tables_wait_again() -> None:
    clock = Clock()
    agenda = agenda_of(clock, kv("a", due=1005.0))
    clock.now = 1006.0
    assert list(agenda.fall_due()) == ["a"]
    clock.now = 400.0
    assert not agenda.fall_due()
    assert agenda.wait_s(10_000.0) == 605.0
    clock.now = 1005.0
    assert list(agenda.fall_due()) == ["a"]


def test_a_new_listing_forgets_what_is_gone() -> None:
    agenda = agenda_of(Clock(), kv("a", due=0.0), kv("b", due=0.0))
    agenda.apply(Listing([kv("b", due=0.0)], 5))
    assert list(agenda.fall_due()) == ["b"]


def head(table: str) -> bytes:
    return SPACE.table(table).head


def marks(table: str) -> bytes:
    return SPACE.table(table).watermarks


def test_heads_are_looked_at_of_tables_with_conditions_at_a_bounded_rate() -> None:
    clock = Clock()
    agenda = agenda_of(
        clock, kv("a", watches=True, head=7, looked_at=990.0), kv("b", due=5000.0), kv("c", watches=True)
    )
    assert agenda.watched() == {head("c")}
    clock.now = 990.0 + AGAIN_S
    assert agenda.watched() == {head("a"), head("c")}
    agenda.moved({head("a"): 7, head("c"): 9, head("gone"): 4, head("b"): 1})
    assert list(agenda.fall_due()) == ["c"]
    assert agenda.watched() == {head("a")}
    put(agenda, kv("c", watches=True, head=9, looked_at=clock.now))
    assert not agenda.fall_due()
    clock.now = 5.0  # a clock set back does not keep anybody from looking
    assert agenda.watched() == {head("a"), head("c")}
    agenda.moved({head("c"): 10})
    clock.now = 4.0
    assert list(agenda.fall_due()) == ["c"]


def test_watermarks_of_other_tables_are_looked_at_of_tables_that_wait_for_them() -> None:
    """Each is read once, however many wait for it, and none by tables that were looked at just now."""
    clock = Clock()
    waiting = [kv("a", marks={"x": 5, "y.z": 0}), kv("b", marks={"x": 5}, watches=True, head=2)]
    agenda = agenda_of(clock, *waiting, kv("c", marks={"x": 4}, looked_at=999.0))
    assert agenda.watched() == {marks("x"), marks("y.z"), head("b")}
    agenda.moved({marks("x"): 5, marks("y.z"): 0, head("b"): 2})
    assert not agenda.fall_due()
    agenda.moved({marks("x"): 5, marks("y.z"): 8, head("b"): 2})
    assert list(agenda.fall_due()) == ["a"]
    assert agenda.watched() == {marks("x"), head("b")}
    clock.now += AGAIN_S
    agenda.moved({marks("x"): 5})
    assert list(agenda.fall_due()) == ["a", "c"]
    put(agenda, kv("b"))
    assert not agenda.watched()


def test_only_tables_that_are_to_be_led_here_are_looked_at() -> None:
    clock, mine = Clock(), {"a", "w"}
    agenda = agenda_of(
        clock,
        kv("a", due=0.0),
        kv("b", due=0.0),
        kv("c", due=1005.0),
        kv("v", watches=True),
        kv("w", watches=True),
        mine=lambda table: table in mine,
    )
    assert list(agenda.fall_due()) == ["a"]
    assert agenda.watched() == {head("w")}
    mine = {"b", "c", "v"}
    agenda.regroup()
    assert list(agenda.fall_due()) == ["b"]
    assert agenda.watched() == {head("v")}
    clock.now = 1005.0
    assert list(agenda.fall_due()) == ["b", "c"]


def test_schedules_that_change_often_cost_no_memory() -> None:
    agenda = agenda_of(Clock(), kv("a", due=9e9))
    for number in range(5000):
        put(agenda, kv("a", due=9e9 + number % 2))
        put(agenda, kv("b", due=float(number % 3)))
        agenda.fall_due()
    assert len(agenda._times) < 200
    assert list(agenda.fall_due()) == ["b"]


def test_an_entry_of_a_newer_version_is_left_alone() -> None:
    newer = KeyValue(SPACE.table("n").agenda, b'{"version": 99, "due": 0}', 1, 1)
    agenda = agenda_of(Clock(), newer, kv("a", due=0.0))
    assert list(agenda.fall_due()) == ["a"]
