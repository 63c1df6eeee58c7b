"""Properties of a table by which pyiceberg would run any function of Python, or write anywhere."""

import importlib
from pathlib import Path

import pytest
from pyiceberg.table.update import SetPropertiesUpdate, UpgradeFormatVersionUpdate

from distop.catalog.updates import format_upgraded
from distop.errors import InvalidArgument
from distop.lake.altering import altered
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout.evolution import SetProperties
from distop.lake.layout.model import Layout, file_io, load_metadata
from distop.lake.layout.properties import check_properties, inert
from distop.metastore.records.table import TableRecord
from distop.spark_jobs.tables import open_snapshot
from support.tables.publishing import ROWS, Table, rows

NAMES = ["py-io-impl", "write.py-location-provider.impl"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with three rows, at a path."""
    made = Table("flights", str(tmp_path / "flights"), Layout.create(ROWS, ["kind"]))
    made.publish(made.staged([rows(0, 3)]))
    return made


def with_properties(table: Table, properties: dict[str, str]) -> str:
    """Metadata of the table to which another program has given these properties."""
    published = TableFile.read(table.record().metadata_location)
    foreign = published.metadata.model_copy(update={"properties": properties})
    return Draft(file_io(table.location), TableFile.of(foreign, published.location)).write()


def test_code_in_metadata_is_not_run(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: neither where a coordinator publishes nor where the table is read."""
    (tmp_path / "trap.py").write_text("calls = []\ndef spring(*arguments):\n    calls.append(arguments)\n")
    monkeypatch.syspath_prepend(tmp_path)
    location = with_properties(table, dict.fromkeys(NAMES, "trap.spring"))
    table.replace(location)
    table.layout = Layout.of(load_metadata(location))
    table.publish(table.staged([rows(3, 3)]))
    snapshot = open_snapshot(table.record().metadata_location)
    assert snapshot.metadata.properties["py-io-impl"] == "trap.spring"
    found = [row["id"] for batch in snapshot.batches(snapshot.plan_files()) for row in batch.to_pylist()]
    assert sorted(found) == list(range(6))
    assert importlib.import_module("trap").calls == []


@pytest.mark.parametrize("name", NAMES)
def test_properties_that_name_code_are_refused_at_every_entry(name: str) -> None:
    """S1: the error names the property and the field."""
    with pytest.raises(InvalidArgument, match=name) as refused:
        Layout.create(ROWS, [], {name: "subprocess.Popen"})
    assert refused.value.details["field"] == "properties"
    record = TableRecord(name="flights", location="/tmp/flights")
    with pytest.raises(InvalidArgument, match=name):
        altered(record, None, [SetProperties(set={name: "subprocess.Popen"})])


@pytest.mark.parametrize("place", ["/tmp/flights2", "/tmp", "s3://flights/data", "/tmp/flights/../x", "data"])
def test_an_altered_table_writes_into_its_own_folder_only(place: str) -> None:
    """S2"""
    record = TableRecord(name="flights", location="file:///tmp/flights")
    with pytest.raises(InvalidArgument) as refused:
        altered(record, None, [SetProperties(set={"write.data.path": place})])
    assert refused.value.details["field"] == "properties"
    own = {"write.data.path": "/tmp/flights/data2"}
    assert altered(record, None, [SetProperties(set=own)]).record.options["properties"] == own


ACTING = """
Py-IO-Impl io-impl write.location-provider.impl metrics-reporter-impl encryption.kms-impl py-catalog-impl
s3.endpoint s3.secret-access-key gcs.oauth2.token adls.sas-token.account.dfs.core.windows.net
adls.connection-string hdfs.host client.access-key-id client.assume-role.arn
token credential uri warehouse header.authorization oauth2-server-uri my.password
"""


@pytest.mark.parametrize("name", ACTING.split())
def test_names_that_a_library_acts_on_are_refused(name: str) -> None:
    """S1: code, credentials, and endpoints."""
    with pytest.raises(InvalidArgument, match="names code"):
        check_properties({name: "x"})
    assert inert({name: "x", "owner": "me"}) == {"owner": "me"}


@pytest.mark.parametrize("name", ["hf.token", "hf.endpoint", "nessie.host", "x.y", ".impl", "s3.endpoint\n"])
def test_names_of_kinds_that_nobody_knows_are_refused(name: str) -> None:
    """S1: what a library is to act on tomorrow, too."""
    with pytest.raises(InvalidArgument) as refused:
        check_properties({name: "x"})
    assert refused.value.details["field"] == "properties"
    assert inert({name: "x", "user.team": "a"}) == {"user.team": "a"}


def test_properties_that_name_no_code_are_kept() -> None:
    notes = ["owner", "comment", "user.cost-centre", "write.format.default", "commit.retry.num-retries"]
    notes += ["write.parquet.compression-codec", "history.expire.max-snapshot-age-ms", "distop.note"]
    notes += ["write.object-storage.enabled", "gc.enabled"]
    mapping = {"schema.name-mapping.default": '[{"field-id": 1, "names": ["id"]}]'}
    check_properties(dict.fromkeys(notes, "x") | mapping)


def test_a_property_is_no_way_to_another_format() -> None:
    """V5: a table that says so and is not would be misread; one that said so before can still be changed."""
    layout = Layout.create(ROWS, [], {"format-version": "2"})
    assert "format-version" not in layout.new_metadata("file:///t").properties
    record = TableRecord(name="t", location="file:///t")
    for version in ("1", "3", "x"):
        with pytest.raises(InvalidArgument, match=f"format 2, not '{version}'") as refused:
            Layout.create(ROWS, [], {"format-version": version})
        assert refused.value.details["field"] == "properties"
        with pytest.raises(InvalidArgument, match="format 2"):
            altered(record, None, [SetProperties(set={"format-version": version})])
    check_properties({"format-version": "3"}, existing={"format-version": "3"})
    kept = altered(record, None, [SetProperties(set={"format-version": "2", "user.a": "b"})])
    assert kept.record.options["properties"] == {"user.a": "b"}


def test_a_program_that_sets_the_format_as_a_property_upgrades_the_table() -> None:
    """V5: as Iceberg's Java library does."""
    given = [SetPropertiesUpdate(updates={"format-version": "2", "a": "b"}), SetPropertiesUpdate(updates={})]
    upgrade, properties, unchanged = format_upgraded(given)
    assert upgrade == UpgradeFormatVersionUpdate(format_version=2)
    assert (properties, unchanged) == (SetPropertiesUpdate(updates={"a": "b"}), given[1])


@pytest.mark.parametrize(
    "properties", [{f"p{at}": "" for at in range(257)}, {"p" * 257: ""}, {"p": "x" * 20_000}]
)
def test_properties_are_bounded_in_number_and_size(properties: dict[str, str]) -> None:
    """U3: in number and size."""
    with pytest.raises(InvalidArgument) as refused:
        check_properties(properties)
    assert refused.value.details["field"] == "properties"
    assert len(str(refused.value)) < 1000


def test_metadata_files_lie_in_the_folder_of_their_table(table: Table, tmp_path: Path) -> None:
    """S2: whatever path another program has put into the table's properties."""
    elsewhere = {"write.metadata.path": str(tmp_path / "others" / "metadata")}
    location = with_properties(table, elsewhere)
    assert location.startswith(f"{table.location}/metadata/")
    assert not (tmp_path / "others").exists()
