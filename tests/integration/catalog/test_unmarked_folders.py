"""A program of pyiceberg that dies after it has made a table, and before it has said that the folder is the
table's own: whoever needs that next says it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.table.update import SetLocationUpdate

from distop.catalog.catalog import EtcdCatalog
from distop.client import AsyncClient
from distop.errors import LocationInUse, LocationNotOwned
from distop.lake.layout.staging import is_empty, owners
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import config_of, running
from support.tables.catalogs import SCHEMA, ids

DATED = {"older_than": "1d", "dry_run": False}


@pytest_asyncio.fixture
async def sdk(etcd_config: EtcdConfig) -> AsyncIterator[AsyncClient]:
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as client:
        yield client


@pytest.fixture
def unmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if programs died right before they say whose a folder is."""

    def dies(*args: object) -> None:
        raise OSError("it never came to that")

    monkeypatch.setattr("distop.catalog.places.mark_folder", dies)


@pytest.mark.usefixtures("unmarked")
async def test_the_next_who_needs_the_owner_file_puts_it_there(
    catalog: EtcdCatalog, sdk: AsyncClient, tmp_path: Path
) -> None:
    """S2: a commit, an operation, the removal of orphans, a drop with all files."""
    made = {name: catalog.create_table(name, SCHEMA) for name in ("commit", "ingest", "orphans", "purge")}
    moved = catalog.create_table("moved", SCHEMA)
    catalog.commit_table(moved, (), (SetLocationUpdate(location=f"file://{tmp_path}/moved"),))
    assert [owners(table.location()) for table in made.values()] == [[]] * 4

    made["commit"].append(ids(0, 1))
    source = tmp_path / "rows.csv"
    source.write_text("id,kind\n1,k\n")
    await sdk.start("ingest", "ingest", {"paths": [str(source)]})
    await sdk.start("orphans", "remove_orphans", DATED)
    await sdk.start("moved", "remove_orphans", DATED)
    for name in ("commit", "ingest", "orphans"):
        assert len(owners(made[name].location())) == 1
    assert len(owners(f"file://{tmp_path}/moved")) == 1
    await sdk.table("purge").drop(purge=True)
    assert is_empty(made["purge"].location())


async def test_a_foreign_folder_is_not_taken(catalog: EtcdCatalog, sdk: AsyncClient, tmp_path: Path) -> None:
    """S2: one that held files before, that of a registered table, one that another has taken."""
    full, table = tmp_path / "full", catalog.create_table("t", SCHEMA)
    full.mkdir()
    (full / "letters").touch()
    catalog.create_table("full", SCHEMA, location=str(full))
    catalog.create_table("taken", SCHEMA)
    catalog.drop_table("t")
    catalog.register_table("registered", table.metadata_location)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("full", SCHEMA)
    for name in ("full", "registered"):
        catalog.load_table(name).append(ids(0, 1))
        with pytest.raises(LocationNotOwned):
            await sdk.table(name).drop(purge=True)
        with pytest.raises(LocationNotOwned):
            await sdk.start(name, "remove_orphans", DATED)
        assert owners(catalog.load_table(name).location()) == []
    taken = Path(catalog.load_table("taken").location().removeprefix("file://")) / "_distop"
    (mark,) = taken.iterdir()
    mark.rename(taken / "table-other")
    with pytest.raises(LocationInUse):
        catalog.load_table("taken").append(ids(0, 1))
    with pytest.raises(LocationInUse):
        await sdk.table("taken").drop(purge=True)
