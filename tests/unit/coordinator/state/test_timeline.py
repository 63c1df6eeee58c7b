"""The events of an operation: each once, few and short."""

from distop.coordinator.state.tracker import FIRST, MAX_BYTES, MAX_EVENTS, TAKEN, Timeline, event
from distop.metastore.records.record import encode


def test_an_event_that_is_seen_twice_counts_once() -> None:
    timeline = Timeline()
    for _ in range(2):
        timeline.add(event(1.0, TAKEN, "e1"))
    assert not timeline.unrecorded
    assert len(timeline.record().events) == 1
    timeline.add(event(2.0, TAKEN, "e2"))
    assert timeline.unrecorded


def test_the_first_and_last_of_too_many_events_are_kept() -> None:
    timeline = Timeline()
    for number in range(1000):
        timeline.add(event(float(number), "taken", f"e{number}"))
    record = timeline.record([event(2000.0, "sealed")])
    assert (len(record.events), record.left_out) == (MAX_EVENTS, 1001 - MAX_EVENTS)
    assert [one.at for one in record.events[:FIRST]] == [float(number) for number in range(FIRST)]
    assert record.events[-1].what == "sealed"


def test_long_texts_take_no_more_than_their_room() -> None:
    timeline = Timeline()
    for number in range(MAX_EVENTS):
        timeline.add(event(float(number), "completion failed", about="é" * 10_000))
    record = timeline.record()
    assert len(encode(record)) <= MAX_BYTES
    assert len(record.events) + record.left_out == MAX_EVENTS


def test_a_new_leader_goes_on_where_the_last_one_stopped() -> None:
    timeline, before = Timeline(), Timeline()
    for number in range(100):
        before.add(event(float(number), "taken", f"e{number}"))
    timeline.add(event(99.0, "taken", "e99"))  # what the present keys say
    timeline.restore(before.record())
    assert timeline.record() == before.record()
    timeline.lead(event(200.0, "led", "c2"))
    timeline.restore(before.record())  # its own write, that it sees, brings nothing back
    assert timeline.record().left_out == 100 + 1 - MAX_EVENTS
