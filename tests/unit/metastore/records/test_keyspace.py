"""Names to keys and back (O29): nothing collides, nothing is confused, originals come back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.errors import CorruptRecord, InvalidName
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.names import (
    MAX_NAME_BYTES,
    OperationId,
    check_name,
    check_new_name,
    check_object,
    check_partition,
    check_table_name,
    check_type,
    escape,
    prefix_end,
    unescape,
)

# What is awkward in names, more often than chance would bring it.
AWKWARD = st.sampled_from([*'./%_ \n\0"\\0123456789aé日🦆', "%2E", "..", "state", "arg"])
TEXT = st.lists(st.one_of(AWKWARD, st.characters(codec="utf-8")), min_size=1, max_size=12).map("".join)
NAMES = TEXT.filter(lambda name: not name.startswith("_"))
OBJECTS = NAMES.filter(lambda name: name[0].isalpha() and _accepted(check_object, name))
PARTITIONS = NAMES.filter(lambda name: _accepted(check_partition, name))
TYPES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,20}", fullmatch=True).filter(
    lambda name: _accepted(check_type, name)
)
OPERATIONS = st.builds(
    OperationId,
    table=NAMES.filter(lambda name: _accepted(check_table_name, name) and check_table_name(name) == name),
    type=TYPES,
    instance=st.integers(1, 10**18 - 1),
    object=st.one_of(st.just(""), OBJECTS),
)


def _accepted(check: object, name: str) -> bool:
    try:
        check(name)  # type: ignore[operator]
    except InvalidName:
        return False
    return True


@given(st.text(st.characters(codec="utf-8")))
def test_any_name_survives_escaping(name: str) -> None:
    """O29: originals are shown again."""
    assert unescape(escape(name)) == name


@given(TEXT)
def test_an_escaped_name_is_one_printable_component(name: str) -> None:
    """O29: ``etcdctl`` shows it on one line, and it splits in one way only."""
    assert re.fullmatch(r"[!-~]+", escape(name))
    assert "." not in escape(name)


@given(TEXT, TEXT)
def test_different_names_have_different_components(one: str, other: str) -> None:
    """O29: "a.b", "a b", "a%b", "a%2Eb" never meet."""
    assert (escape(one) == escape(other)) == (one == other)


def test_names_of_the_checklist_are_allowed() -> None:
    """O29."""
    for name in ("a.b", "a b", "a%b", "a/b", "a%2Eb", "größe", "日本", "🦆", "a\nb", "x" * 512):
        assert check_name(name, "table") == name
        assert unescape(escape(name)) == name


@given(NAMES, NAMES)
def test_a_table_sees_its_own_keys_only(one: str, other: str) -> None:
    """O29: `orders` next to `orders2`, and names of every kind."""
    keyspace = Keyspace()
    mine, theirs = keyspace.table(one), keyspace.table(other)
    for key in (
        theirs.table,
        theirs.head,
        theirs.coordinator,
        theirs.request("r"),
        theirs.next_instance("noop"),
    ):
        inside = mine.prefix <= key < prefix_end(mine.prefix)
        assert inside == (one == other)
        assert keyspace.table_of(key) == other


@given(OPERATIONS, OPERATIONS, PARTITIONS)
def test_an_operation_sees_its_own_keys_only(one: OperationId, other: OperationId, partition: str) -> None:
    """O29: instance 1 next to 10, an object next to another, a partition that looks like either."""
    keyspace = Keyspace()
    mine, theirs = keyspace.operation(one), keyspace.operation(other)
    for key in (theirs.arg, theirs.state, theirs.job_state(partition), theirs.claim(partition)):
        assert (mine.prefix <= key < prefix_end(mine.prefix)) == (one == other)


def test_instance_1_does_not_see_instance_10() -> None:
    """O29."""
    keyspace = Keyspace()
    one = keyspace.operation(OperationId("orders", "noop", 1))
    assert not keyspace.operation(OperationId("orders", "noop", 10)).state.startswith(one.prefix)
    assert not keyspace.operation(OperationId("orders2", "noop", 1)).state.startswith(one.prefix)


@given(OPERATIONS, PARTITIONS)
def test_a_partition_is_found_again_in_its_keys_and_in_no_others(
    operation: OperationId, partition: str
) -> None:
    """O29."""
    keys = Keyspace().operation(operation)
    assert keys.partition_of(keys.job_state(partition)) == (partition, "state")
    assert keys.partition_of(keys.claim(partition)) == (partition, "claim")
    assert keys.partition_of(keys.progress(partition)) == (partition, "progress")
    for key in (keys.arg, keys.state, keys.runner, keys.cancel, keys.error, keys.commit, keys.commit + b".3"):
        assert keys.partition_of(key) is None


@given(OPERATIONS)
def test_operation_ids_come_back_from_every_form(operation: OperationId) -> None:
    """O29: from text, from a slot of ``runOps``, from the index, from the history."""
    keyspace = Keyspace()
    assert OperationId.parse(str(operation)) == operation
    assert OperationId.from_slot(operation.table, operation.type, operation.slot) == operation
    active = keyspace.active_operation(operation)
    assert keyspace.parse_active(active) == operation
    assert keyspace.parse_history(keyspace.table(operation.table).history(operation)) == operation


@given(st.one_of(st.text(), st.lists(st.one_of(AWKWARD, st.just("/")), max_size=12).map("".join)))
def test_what_is_no_operation_id_is_refused_by_name(text: str) -> None:
    """U3: nothing a caller can write leads to another error, or to an operation of another spelling."""
    try:
        operation = OperationId.parse(text)
    except InvalidName:
        return
    assert OperationId.parse(str(operation)) == operation


def test_a_malformed_operation_id_is_refused() -> None:
    """U3: a partition ("t/noop/5/3") or an internal key is never taken for an operation."""
    malformed = (
        "",
        "t/noop",
        "t/noop/",
        "/noop/1",
        "t/noop/one",
        "t/noop/0",
        "t/noop/01",
        "t/noop/-1",
        "t/noop/１",
        "t/noop/" + "9" * 5000,
        "t/noop/%FF/1",
        "%FF/noop/1",
        "t/no.op/1",
        "t/runOps/1",
        "t/noop/5/3",
        "t/noop/state/3",
        "_active/noop/1",
        "t/noop/a/b/1",
        "x" * (MAX_NAME_BYTES + 1) + "/noop/1",
    )
    assert [text for text in malformed if _accepted(OperationId.parse, text)] == []


@pytest.mark.parametrize(
    "name", ["", "_x", "x" * (MAX_NAME_BYTES + 1), "é" * (MAX_NAME_BYTES // 2 + 1), "\ud800"]
)
def test_names_that_are_refused(name: str) -> None:
    """O29, U3: empty, reserved, too long, not unicode; the error names the field."""
    for check in (lambda n: check_name(n, "table"), check_object, check_partition):
        with pytest.raises(InvalidName) as caught:
            check(name)
        assert caught.value.details["field"]


@pytest.mark.parametrize("name", ["arg", "state", "commit", "runner", "cancel", "nextInstanceId"])
def test_words_of_an_operation_are_no_objects_and_no_partitions(name: str) -> None:
    """O29: a partition called "commit" would have the key of the commit sequence."""
    for check in (check_object, check_partition):
        with pytest.raises(InvalidName):
            check(name)


@pytest.mark.parametrize("name", ["17", "1a", "-a", " a", "%"])
def test_an_object_begins_with_a_letter(name: str) -> None:
    """O29: else it might be taken for an instance."""
    with pytest.raises(InvalidName):
        check_object(name)


def test_bad_names_of_types_are_refused() -> None:
    refused = ("", "1x", "a.b", "a b", "table", "history", "runOps", "request", "x" * 65, "é")
    assert [name for name in refused if _accepted(check_type, name)] == []


@given(TEXT.filter(lambda name: not name.startswith("_")), NAMES)
def test_installations_do_not_see_each_other(prefix: str, table: str) -> None:
    """O29: several installations share one etcd."""
    mine = Keyspace(prefix)
    for other in (Keyspace(prefix + "2"), Keyspace("x" + prefix), Keyspace(prefix + ".a")):
        for key in (other.table(table).table, other.coordinators, other.active, other.namespaces):
            assert not mine.prefix <= key < prefix_end(mine.prefix)


@given(NAMES)
def test_no_table_hides_among_the_internal_keys(table: str) -> None:
    """O29: names that begin with "_" are reserved."""
    keyspace = Keyspace()
    for internal in (keyspace.active, keyspace.coordinators, keyspace.executors, keyspace.namespaces):
        assert not keyspace.table(table).table.startswith(internal)


STRANGE = [b"x", b"\xff", b"%FF", b"t%41", b"", b".noop.1", b"t.noop.x", b"t.noop.01", b"t.noop.0", b"t..1"]
STRANGE += [b"t.%FF.1", b"t.noop.\xff.1", b"t.noop.a.b.1", "t.noop.\u0661".encode()]


@pytest.mark.parametrize("tail", STRANGE)
def test_a_key_that_no_operation_has_is_refused(tail: bytes) -> None:
    """O29, C11: by the error that followers skip, whatever the bytes."""
    space, table, _, rest = Keyspace(), *tail.partition(b".")
    for parse, key in (
        (space.parse_active, space.active + tail),
        (space.parse_waiting, space.waiting_from(7) + tail),
        (space.parse_waiting, space.waiting + tail),
        (space.parse_history, b"distOp.%s.history.%s" % (table, rest)),
        (space.paused_by, b"%s%s." % (space.paused, tail)),
    ):
        with pytest.raises(CorruptRecord, match=re.escape(key.decode(errors="backslashreplace"))):
            parse(key)


@pytest.mark.parametrize("name", [b"", b"\xff", b"%FF", b"t%41", b"a.b", "\u00e4".encode()])
def test_a_key_that_no_name_makes_is_refused(name: bytes) -> None:
    """O29, C11: also one in another spelling than its name's."""
    space = Keyspace()
    for index in (space.tables, space.coordinators, space.backlog_tables, space.agendas):
        with pytest.raises(CorruptRecord, match="names nothing"):
            space.name_in(index, index + name)


@given(OPERATIONS)
def test_the_key_of_a_pause_names_the_table_or_operation(operation: OperationId) -> None:
    """O21, O29."""
    space, table = Keyspace(), operation.table
    assert space.paused_by(space.paused_operation(operation)) == (table, operation)
    assert space.paused_by(space.paused_table(table)) == (table, None)
    assert space.name_in(space.tables, space.table(table).entry) == table


def test_a_table_has_one_spelling() -> None:
    """O29: the namespace ``default`` may be written before a name if it is the only level."""
    assert check_table_name("default.flights") == check_table_name("flights") == "flights"
    assert check_table_name("default") == "default"
    for name in ("a.flights", "a.default.flights", "default.a.flights", "Default.flights", "a b.c"):
        assert check_table_name(name) == name
    assert str(OperationId.parse("default.flights/ingest/1")) == "flights/ingest/1"
    for name in ("", "a..b", ".a", "a.", "a. .b", "default.", "default._a", "_a"):
        with pytest.raises(InvalidName):
            check_table_name(name)


@pytest.mark.parametrize("name", ["orders", "a.b.c", "b c", "Zürich", "flüge/2024", "表"])
def test_plain_names_are_taken(name: str) -> None:
    assert check_new_name(name, "name") == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (".", "empty part"),
        ("..", "empty part"),
        ("a..b", "empty part"),
        (".a", "empty part"),
        ("a.", "empty part"),
        (" ", "empty part"),
        ("a. .b", "empty part"),
        ("a/..", "empty part"),
        ("a.%2E", "consists of dots"),
        ("%2E%2E.a", "consists of dots"),
        ("a//b", "path"),
        ("/a", "path"),
        (" a", "blank"),
        ("a ", "blank"),
        ("a\0b", r"U\+0000"),
        ("a\x1b[31mb", r"U\+001B"),
        ("a\nb", r"U\+000A"),
        ("a\u202eb", r"U\+202E"),
        ("a\u200bb", r"U\+200B"),
        ("a\u00a0b", r"U\+00A0"),
        ("Zu\u0308rich", "NFC"),
    ],
)
def test_names_that_read_as_others_are_refused(name: str, says: str) -> None:
    """U3: by field, and in words that say what is wrong."""
    with pytest.raises(InvalidName, match=says) as caught:
        check_new_name(name, "name")
    assert caught.value.details["field"] == "name"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("/data/x", "data/x"),
        ("/data/x/", "data/x"),
        (".x", "x"),
        ("./data//x", "data/x"),
        ("../x", "x"),
        ("a. .b", "a.b"),
        (" a", "a"),
        ("a..b", "a.b"),
    ],
)
def test_a_name_like_a_path_is_refused_with_one_that_is_taken(name: str, instead: str) -> None:
    """U3: as names of datasets are folders in other systems."""
    with pytest.raises(InvalidName) as caught:
        check_new_name(name, "name")
    assert caught.value.hint == f"write {instead!r}"
    assert check_new_name(instead, "name") == instead


@pytest.mark.parametrize("name", ["/", "..", "/_x", "a\0b", "/a\u200b"])
def test_no_name_is_advised_that_is_refused_too(name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_new_name(name, "name")
    assert caught.value.hint == ""


def test_only_keys_of_one_table_are_batched_together() -> None:
    """C8: its own, and its entries in indexes; no other table has them."""
    space = Keyspace()
    for name in ("orders", "orders2", "active", "a.b"):
        keys = space.table(name)
        operation = OperationId(name, "noop", 1, "o")
        index = space.active_operation(operation).removesuffix(b"noop.o.1")
        own = [keys.head, keys.operation(operation).claim("0"), keys.backlog_index, keys.entry, keys.agenda]
        own += [space.active_operation(operation), space.waiting_operation(operation), keys.coordinator]
        own += [space.paused_table(name), space.paused_operation(operation), space.dropped(name)]
        ranges = [(key, b"") for key in own] + [(key, prefix_end(key)) for key in (keys.prefix, index)]
        for other in ("orders", "orders2", "active", "a.b"):
            lane = space.table(other).prefix
            assert {space.is_in_lane(lane, *each) for each in ranges} == {other == name}
    lane = space.table("orders").prefix
    wider = [(lane, prefix_end(space.prefix)), (space.active, prefix_end(space.active)), (b"x", b"")]
    wider += [(lane, b"\0"), (space.table("orders").entry, b"\0")]  # etcd: to the last key of all
    wider += [(key, b"") for key in (space.installation, space.policy, space.location("file:///orders"))]
    assert not any(space.is_in_lane(lane, *each) for each in wider)
