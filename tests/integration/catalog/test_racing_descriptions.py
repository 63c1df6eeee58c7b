"""Commits that only describe a table are made on top of those that were faster, as long as what they require
holds; and a table that was loaded earlier is never mistaken for another one."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AddPartitionSpecUpdate, AddSchemaUpdate, TableUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from distop.catalog.catalog import EtcdCatalog
from distop.errors import InvalidArgument
from distop.lake.layout.properties import MAX_ID
from support.tables.catalogs import SCHEMA, ids

ONCE = {"commit.retry.num-retries": "0"}
"""pyiceberg does not try again by itself."""
NAME, WRITERS, EACH = "default.t", 6, 10


def set_owner(table: Table, owner: str) -> None:
    with table.transaction() as transaction:
        transaction.set_properties(owner=owner)


def test_all_of_many_writers_set_their_properties(catalog: EtcdCatalog) -> None:
    """P6: none is refused, and none overwrites another one's."""
    catalog.create_table(NAME, SCHEMA, properties=ONCE)

    def write(writer: int) -> None:
        for number in range(EACH):
            with catalog.load_table(NAME).transaction() as transaction:
                transaction.set_properties({f"user.{writer}-{number}": str(number)})

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    found = catalog.load_table(NAME).properties
    expected = {f"user.{writer}-{number}": str(number) for writer in range(WRITERS) for number in range(EACH)}
    assert {name: found.get(name) for name in expected} == expected


def test_a_description_goes_on_top_of_rows(catalog: EtcdCatalog) -> None:
    table = catalog.create_table(NAME, SCHEMA, properties=ONCE)
    late = catalog.load_table(NAME).transaction()
    late.set_properties(owner="me")
    table.append(ids(0, 3))
    late.commit_transaction()
    found = catalog.load_table(NAME)
    assert found.properties["owner"] == "me"
    assert found.scan().to_arrow().num_rows == 3


def test_columns_that_another_one_has_changed_meanwhile_are_refused(catalog: EtcdCatalog) -> None:
    """Its requirement, the present schema, does not hold any more."""
    table = catalog.create_table(NAME, SCHEMA, properties=ONCE)
    late = catalog.load_table(NAME).update_schema().add_column("late", LongType())
    with table.update_schema() as changing:
        changing.add_column("early", LongType())
    with pytest.raises(CommitFailedException):
        late.commit()
    assert catalog.load_table(NAME).schema().column_names == ["id", "kind", "early"]


@pytest.mark.parametrize(
    "update",
    [
        AddSchemaUpdate(schema_=Schema(*SCHEMA.fields, NestedField(MAX_ID + 1, "x", LongType()))),
        AddSchemaUpdate(schema_=Schema(*SCHEMA.fields, NestedField(7, "x", LongType()), schema_id=1 << 31)),
        AddPartitionSpecUpdate(
            spec=PartitionSpec(PartitionField(1, MAX_ID + 1, IdentityTransform(), "id"), spec_id=1)
        ),
        AddPartitionSpecUpdate(
            spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"), spec_id=1 << 31)
        ),
    ],
)
def test_ids_that_iceberg_does_not_have_are_refused(catalog: EtcdCatalog, update: TableUpdate) -> None:
    """U3: programs in other languages could not read the table any more."""
    table = catalog.create_table(NAME, SCHEMA)
    with pytest.raises(InvalidArgument, match=f"at most {MAX_ID}"):
        catalog.commit_table(table, (), (update,))
    assert catalog.load_table(NAME).metadata == table.metadata


def test_what_was_true_when_the_table_was_loaded_is_made_true_again(catalog: EtcdCatalog) -> None:
    """P6: a commit that seems to change nothing is held against the present table, not the loaded one."""
    catalog.create_table(NAME, SCHEMA, properties=ONCE | {"owner": "me"})
    stale = catalog.load_table(NAME)
    other = EtcdCatalog.over(catalog.etcd, "other")
    set_owner(other.load_table(NAME), "another one")
    set_owner(stale, "me")
    assert catalog.load_table(NAME).properties["owner"] == "me"


def test_a_request_that_another_one_has_done_is_answered_with_its_rows(catalog: EtcdCatalog) -> None:
    """P8: and not with the table as it was loaded."""
    catalog.create_table(NAME, SCHEMA, properties=ONCE)
    stale = catalog.load_table(NAME)
    other, told = EtcdCatalog.over(catalog.etcd, "other"), {"distop.run": "once"}
    other.load_table(NAME).append(ids(0, 3), snapshot_properties=told)
    stale.append(ids(0, 3), snapshot_properties=told)
    assert stale.scan().to_arrow().num_rows == 3
    assert catalog.load_table(NAME).scan().to_arrow().num_rows == 3


def test_a_table_whose_name_is_another_ones_by_now(catalog: EtcdCatalog) -> None:
    """P6: a table object writes to no table but its own, whatever was loaded since."""
    stale = catalog.create_table(NAME, SCHEMA, properties=ONCE)
    catalog.load_table(NAME)
    renamed = catalog.rename_table(NAME, "default.other")
    assert renamed.metadata_location == stale.metadata_location
    with pytest.raises(NoSuchTableError):
        set_owner(stale, "stale")
    other = catalog.create_table(NAME, SCHEMA, properties=ONCE)
    with pytest.raises(CommitFailedException):  # another uuid
        set_owner(stale, "stale")
    for table in (renamed, other):
        assert "owner" not in table.refresh().properties
