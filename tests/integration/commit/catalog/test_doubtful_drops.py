"""A drop or a rename whose reply is lost, while others go on with the names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table.update import SetLocationUpdate

from distop.commit.catalog.catalog import EtcdCatalog
from distop.errors import OutcomeUnknown
from support.etcd.lossy import Fault
from support.tables.catalogs import SCHEMA, faulty, ids


@pytest.mark.parametrize("drop", [EtcdCatalog.drop_table, EtcdCatalog.purge_table])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_drop_takes_no_table_that_was_made_after_it(
    catalog: EtcdCatalog,
    other: EtcdCatalog,
    tmp_path: Path,
    drop: Callable[[EtcdCatalog, str], None],
    elsewhere: bool,
) -> None:
    """P8: by the time at which the drop is found to have happened its name is another table's."""
    catalog.create_table("flights", SCHEMA).append(ids(0, 2))
    place = f"file://{tmp_path}/elsewhere" if elsewhere else None
    losing = faulty(catalog, Fault.LOST_REPLY)
    losing.meanwhile.append(lambda: other.create_table("flights", SCHEMA, place).append(ids(0, 3)))
    drop(catalog, "flights")
    assert other.load_table("flights").scan().to_arrow().num_rows == 3


def test_a_rename_is_known_by_the_table(catalog: EtcdCatalog, other: EtcdCatalog, tmp_path: Path) -> None:
    """P8: it has moved since, or nobody knows who has taken it where it is."""
    catalog.create_table("flights", SCHEMA).append(ids(0, 3))

    def move() -> None:
        to = SetLocationUpdate(location=f"file://{tmp_path}/moved")
        other.commit_table(other.load_table("departures"), (), (to,))

    faulty(catalog, Fault.LOST_REPLY).meanwhile.append(move)
    assert catalog.rename_table("flights", "departures").location() == f"file://{tmp_path}/moved"
    other.rename_table("departures", "flights")
    faulty(catalog, Fault.LOST_REPLY).meanwhile.append(lambda: other.rename_table("departures", "leaving"))
    with pytest.raises(OutcomeUnknown):
        catalog.rename_table("flights", "departures")
