"""What updates make of a view's metadata, and what is refused. Pure."""

from uuid import UUID, uuid4

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssignUUIDUpdate,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.view.metadata import ViewMetadata, ViewVersion

from distop.catalog import view_metadata
from distop.catalog.view_metadata import (
    KEEP,
    AddViewVersionUpdate,
    AssertViewUUID,
    SetCurrentViewVersionUpdate,
    ViewUpdate,
)
from distop.errors import InvalidArgument
from support.tables import views

SCHEMA = Schema(NestedField(1, "id", LongType()))
NOW = 1_700_000_000_000
MANY_DIALECTS = [f"d{number}" for number in range(view_metadata.MAX_REPRESENTATIONS + 1)]


def version(sql: str = "SELECT 1", *dialects: str, number: int = 1, schema: int = 0) -> ViewVersion:
    numbers = {"version-id": number, "schema-id": schema, "timestamp-ms": NOW}
    return ViewVersion(**views.version(sql, *dialects) | numbers)


def adding(one: ViewVersion) -> AddViewVersionUpdate:
    return AddViewVersionUpdate(**{"view-version": one})


def with_schema(one: Schema) -> AddSchemaUpdate:
    return AddSchemaUpdate(schema_=one)


def current(number: int = -1) -> SetCurrentViewVersionUpdate:
    return SetCurrentViewVersionUpdate(**{"view-version-id": number})


def setting(**wanted: str) -> SetPropertiesUpdate:
    return SetPropertiesUpdate(updates=wanted)


def after(base: ViewMetadata, *updates: ViewUpdate, now_ms: int = NOW + 1) -> ViewMetadata:
    return view_metadata.view_after(base, (), updates, now_ms)


@pytest.fixture
def view() -> ViewMetadata:
    return view_metadata.new_view("file:///w/v", SCHEMA, version(number=7, schema=3), {"comment": "one"})


def test_a_new_view_counts_from_its_own_start(view: ViewMetadata) -> None:
    """U3: whatever ids its maker gave."""
    assert (view.current_version_id, view.versions[0].schema_id, view.schemas[0].schema_id) == (1, 0, 0)
    assert [(entry.version_id, entry.timestamp_ms) for entry in view.version_log] == [(1, NOW)]
    assert str(UUID(view.view_uuid)) == view.view_uuid


def test_versions_are_put_on_top_of_what_others_have_added(view: ViewMetadata) -> None:
    """P6: two that were made on the same version are both kept, in the order in which they came."""
    one = after(view, adding(version("SELECT 2", number=2)), current())
    two = after(one, adding(version("SELECT 3", number=2)), current(2))
    kept = {version.version_id: version.representations[0].root.sql for version in two.versions}
    assert kept == {1: "SELECT 1", 2: "SELECT 2", 3: "SELECT 3"}
    assert two.current_version_id == 3
    assert [entry.version_id for entry in two.version_log] == [1, 2, 3]


def test_a_commit_to_a_view_that_comes_twice_adds_nothing(view: ViewMetadata) -> None:
    """P8: a commit that comes twice adds nothing the second time."""
    updates = (with_schema(SCHEMA), adding(version("SELECT 2", number=2, schema=-1)), current())
    once = after(view, *updates)
    assert len(once.versions) == 2
    assert len(once.schemas) == 1
    assert after(once, *updates) is once
    back = after(once, adding(version()), current(), now_ms=NOW + 5)
    assert back.current_version_id == 1
    assert (back.version_log[-1].timestamp_ms, back.version_log[-1].version_id) == (NOW + 5, 1)


def test_old_versions_go_with_their_history_and_schemas(view: ViewMetadata) -> None:
    """O37: as many stay as the property says; the present one always does."""
    for number in range(2, 7):
        schema = Schema(NestedField(1, f"c{number}", StringType()), schema_id=number - 1)
        added = adding(version(f"SELECT {number}", number=number, schema=-1))
        view = after(view, setting(**{KEEP: "3"}), with_schema(schema), added, current())
    assert [one.version_id for one in view.versions] == [4, 5, 6]
    assert [one.version_id for one in view.version_log] == [4, 5, 6]
    assert [one.schema_id for one in view.schemas] == [3, 4, 5]
    view = after(view, current(4))
    view = after(view, adding(version("SELECT 7", number=7, schema=3)))
    assert [one.version_id for one in view.versions] == [4, 6, 7]
    # Behind the last one that is gone.
    assert [one.version_id for one in view.version_log] == [6, 4]


def test_the_history_does_not_grow_forever(view: ViewMetadata) -> None:
    view = after(view, adding(version("SELECT 2", number=2)))
    there_and_back = [current(1 + step % 2) for step in range(view_metadata.MAX_UPDATES)]
    for _ in range(view_metadata.MAX_LOG // view_metadata.MAX_UPDATES + 1):
        view = after(view, *there_and_back)
    assert len(view.version_log) == view_metadata.MAX_LOG
    with pytest.raises(InvalidArgument, match="at most 500 updates"):
        after(view, *there_and_back, current(1))


def test_properties_are_set_and_removed(view: ViewMetadata) -> None:
    changed = after(view, setting(a="b", comment="two"), RemovePropertiesUpdate(removals=["a", "missing"]))
    assert changed.properties == {"comment": "two"}
    assert after(changed, setting(comment="two")) is changed


def test_a_dialect_is_lost_only_if_that_is_allowed(view: ViewMetadata) -> None:
    view = after(view, adding(version("SELECT 1", "spark", "trino", number=2)), current())
    losing = (adding(version("SELECT 2", "Spark", number=3)), current())
    with pytest.raises(InvalidArgument, match=r"loss of view dialects.*trino"):
        after(view, *losing)
    allowed = after(view, setting(**{view_metadata.MAY_DROP_DIALECTS: "true"}), *losing)
    assert allowed.current_version_id == 3


def test_a_commit_to_another_view_is_refused(view: ViewMetadata) -> None:
    """P6: the view of this name was dropped and made again."""
    view_metadata.view_after(view, [AssertViewUUID(uuid=UUID(view.view_uuid))], (), NOW)
    with pytest.raises(CommitFailedException, match="UUID does not match"):
        view_metadata.view_after(view, [AssertViewUUID(uuid=uuid4())], (setting(a="b"),), NOW)
    same: ViewUpdate = AssignUUIDUpdate(uuid=UUID(view.view_uuid))
    assert after(view, same, UpgradeFormatVersionUpdate(**{"format-version": 1})) is view


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (AssignUUIDUpdate(uuid=uuid4()), "Cannot reassign uuid"),
        (UpgradeFormatVersionUpdate(**{"format-version": 2}), "no format version 2"),
        (current(), "no version id has been added"),
        (current(5), "unknown version: 5"),
        (adding(version(schema=-1)), "no schema has been added"),
        (adding(version(schema=9)), "unknown schema 9"),
        (adding(version(number=-3, sql="SELECT 3")), "no id"),
        (adding(version(number=1 << 40, sql="SELECT 3")), "no id"),
        (adding(version("x" * (view_metadata.MAX_SQL + 1))), "characters"),
        (adding(version("x", "spark", "SPARK")), "multiple queries for dialect spark"),
        (adding(version("x", *MANY_DIALECTS)), "representations"),
        (setting(**{KEEP: "0"}), "a number from 1 to"),
        (setting(**{KEEP: str(view_metadata.MAX_KEPT + 1)}), "a number from 1 to"),
        (setting(**{"py-io-impl": "os.system"}), "names code"),
        (setting(**{"s3.endpoint": "http://x"}), "an endpoint"),
        (setting(**{"write.metadata.path": "file:///elsewhere"}), "own folder"),
    ],
)
def test_updates_of_a_view_that_make_no_sense_are_refused(
    view: ViewMetadata, update: ViewUpdate, says: str
) -> None:
    """U3, S1: as an invalid argument; a client takes it for certain that nothing has happened."""
    with pytest.raises(InvalidArgument, match=says):
        after(view, update)


def test_all_of_it_has_a_bound(view: ViewMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """O37"""
    monkeypatch.setattr(view_metadata, "MAX_VIEW_BYTES", 2000)
    with pytest.raises(InvalidArgument, match="at most 2,000") as caught:
        after(view, adding(version("x" * 2000, number=2)), current())
    assert KEEP in caught.value.hint
