"""Building indexes and looking keys up: nothing that a scan finds is ever missed."""

import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distop.errors import Cancelled, Conflict, CorruptRecord, InvalidArgument, PreconditionFailed
from distop.lake.index import lookup as index_lookup
from distop.lake.index.lookup import IndexManifest, IndexPart
from distop.lake.index.publish import DataFileSeen, FilePositions, IndexPublish, PartResult
from distop.lake.layout.model import Layout
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.metastore.records.names import check_object
from distop.metastore.records.operation import JobRecord
from distop.spark_jobs.index import job as index_job
from distop.spark_jobs.index.job import MERGE_ABOVE, cut_into_jobs, parts_to_rebuild
from distop.spark_jobs.index.operation import BuildIndex, object_of_column
from distop.spark_jobs.maintenance.snapshots import ExpireSnapshots, RemoveOrphans
from support.tables.indexing import Indexing
from support.tables.maintaining import Run
from support.tables.publishing import Table, local, new_table, rows


def index_files(table: Table) -> set[str]:
    return {path.name for path in (local(table.location) / "index").rglob("*") if path.is_file()}


def world_of(folder: Path, files: int = 6, per_file: int = 10) -> Indexing:
    """A table of some files with ten rows each: file ``n`` has the ids from ``10 n`` on."""
    table = new_table(folder)
    table.publish(table.staged(*([rows(number * per_file, per_file)] for number in range(files))))
    return Indexing(table)


@pytest.fixture
def world(tmp_path: Path) -> Indexing:
    return world_of(tmp_path)


def index_folder(world: Indexing) -> Path:
    return local(world.table.location) / "index"


def table_of(folder: Path, column: pa.Array, per_file: int) -> Indexing:
    """A table with one column ``v``, so many rows to a file."""
    schema = pa.schema([("v", column.type)])
    table = Table("t", f"file://{folder}/t", Layout.create(schema))
    starts = range(0, len(column), per_file)
    batches = (pa.record_batch([column[start : start + per_file]], schema=schema) for start in starts)
    table.publish(table.staged(*([batch] for batch in batches)))
    return Indexing(table)


# -- looking up --------------------------------------------------------------------------------------


def test_a_lookup_opens_the_files_that_hold_the_key(world: Indexing) -> None:
    facts = world.build("id", files_per_job=2)
    assert (facts["files"], facts["parts"], facts["leftOut"]) == (6, 3, 0)
    narrowed = world.narrowed("id", 34)
    assert list(narrowed) == [world.table.data_files()[3]]
    assert world.rows_with("id", 34) == [{"id": 34, "kind": "k1"}]
    assert sorted(row["id"] for row in world.rows_with("id", 34, 5, 999)) == [5, 34]
    assert world.narrowed("id", 999) == {}


def test_an_index_serves_older_snapshots_and_those_of_a_table_that_was_overwritten(tmp_path: Path) -> None:
    world = world_of(tmp_path, files=2)
    old = world.table.record().snapshot_id
    world.table.publish(world.table.staged([rows(100, 10)]), IcebergOverwrite())
    world.table.publish(world.table.staged([rows(0, 10)]))
    world.build("id")
    assert world.rows_with("id", 5, snapshot=old) == [{"id": 5, "kind": "k2"}]
    assert world.rows_with("id", 15) == []
    assert len(world.rows_with("id", 105)) == 1
    assert len(world.rows_with("id", 5)) == 1


def test_a_column_without_an_index_is_scanned(world: Indexing) -> None:
    world.build("id")
    assert world.look("kind", "k1") is None
    assert world.look("id", *range(2000)) is None


@pytest.mark.parametrize("suffix", ["parquet", "json"], ids=["part", "manifest"])
def test_files_whose_part_of_an_index_cannot_be_read_are_scanned(world: Indexing, suffix: str) -> None:
    """Readers in flight meet parts that a newer index has replaced; others are damaged."""
    world.build("id", files_per_job=3)
    paths = list(index_folder(world).rglob(f"*.{suffix}"))
    for path in paths:
        path.write_bytes(b'{"layout": 99}' if suffix == "json" else path.read_bytes()[:40])
    index_lookup._manifests.clear()
    assert world.look("id", 34) is None if suffix == "json" else world.rows_with("id", 34)
    index_lookup._manifests.clear()
    for path in paths:
        path.unlink()
    if suffix == "json":
        assert world.look("id", 34) is None
        return
    narrowed = world.narrowed("id", 34)
    assert world.rows_with("id", 34) == [{"id": 34, "kind": "k1"}]
    assert len(narrowed) == 3, "those of the part that is gone"


# -- types -------------------------------------------------------------------------------------------

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [1, -5, 2**31 - 1, 7, 0]),
    "long": (pa.int64(), [1, -(2**60), 2**60, 7, 0]),
    "text": (pa.string(), ["", "a", "ü", "x" * 100, "x" * 101, "a\0b"]),
    "double": (pa.float64(), [0.1, -2.5, float("inf"), 1e300]),
    "float": (pa.float32(), [0.5, -2.5, 3.0]),
    "boolean": (pa.bool_(), [True, False]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff" * 80, b"x"]),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_lookup_finds_what_a_scan_finds(tmp_path: Path, name: str) -> None:
    kind, values = VALUES[name]
    rng = random.Random(name)
    column = pa.array([rng.choice([*values, None]) for _ in range(60)], kind)
    world = table_of(tmp_path, column, per_file=7)
    world.build("v", files_per_job=4)
    for value in values:
        count = column.to_pylist().count(value)
        assert len(world.rows_with("v", value)) == len(world.scanned("v", value)) == count


def test_times_in_int96_are_found_in_any_year(tmp_path: Path) -> None:
    """The keys of those before 1677 and after 2262 were those of other times."""
    times = [datetime(year, 7, 1, tzinfo=UTC) for year in (1, 1969, 9999)]
    world = table_of(tmp_path, pa.array(times, pa.timestamp("us", "UTC")), per_file=1)
    for file in world.table.data_files():
        path = local(file)
        pq.write_table(pq.read_table(path), path, use_deprecated_int96_timestamps=True)
    world.build("v")
    for time, file in zip(times, world.table.data_files(), strict=True):
        assert list(world.narrowed("v", time)) == [file]


def test_zeros_are_equal_and_nan_is_found(tmp_path: Path) -> None:
    world = table_of(tmp_path, pa.array([-0.0, 0.0, float("nan"), None, 1.0]), per_file=1)
    world.build("v")
    for value, files in ((0.0, 2), (-0.0, 2), (float("nan"), 1), (1.0, 1), (2.0, 0)):
        assert len(world.narrowed("v", value)) == files, value


def test_a_file_of_nothing_but_null_is_covered(tmp_path: Path) -> None:
    world = table_of(tmp_path, pa.array([None, None], pa.int64()), per_file=1)
    facts = world.build("v")
    assert (facts["files"], facts["entries"]) == (2, 0)
    assert world.narrowed("v", 1) == {}


def test_a_struct_cannot_be_indexed(tmp_path: Path) -> None:
    """O4: refused at the start, naming the field."""
    world = table_of(tmp_path, pa.array([[1]], pa.list_(pa.int64())), per_file=1)
    with pytest.raises(InvalidArgument, match="cannot be indexed") as refused:
        world.start("v")
    assert refused.value.details == {"field": "column"}
    with pytest.raises(InvalidArgument, match="no column 'w'"):
        world.start("w")
    with pytest.raises(InvalidArgument, match="files-per-job"):
        world.start("v", files_per_job=0)
    with pytest.raises(PreconditionFailed, match="nothing has been published"):
        Indexing(new_table(tmp_path / "empty")).start("id")


@pytest.mark.parametrize("column", ["state", "_id", "1st", "a.b", "column=x", "x" * 200, "näme"])
def test_any_name_of_a_column_can_be_the_object(column: str) -> None:
    """O29: also words that keys end with."""
    found = object_of_column(column)
    assert check_object(found) == found
    assert found == column or found == f"column={column}"
    assert object_of_column(found) != found or found == column


# -- keeping up --------------------------------------------------------------------------------------


def test_a_second_build_indexes_only_what_is_new(world: Indexing) -> None:
    world.build("id")
    world.table.publish(world.table.staged([rows(500, 10)], [rows(600, 10)]))
    before = world.narrowed("id", 34)
    assert len(before) == 3, "files that are newer are always opened"
    facts = world.build("id")
    assert (facts["newFiles"], facts["files"], facts["parts"]) == (2, 8, 2)
    assert len(world.rows_with("id", 5, 505, 605)) == 3
    again = world.build("id")
    assert (again["newFiles"], again["files"], again["parts"]) == (0, 8, 2)
    full = world.build("id", full=True)
    assert (full["newFiles"], full["files"], full["parts"]) == (8, 8, 1)
    assert len(world.rows_with("id", 5, 505, 605)) == 3


def test_files_that_left_the_table_leave_the_index(world: Indexing) -> None:
    world.build("id", files_per_job=2)
    world.table.publish(world.table.staged([rows(0, 10)]), IcebergOverwrite())
    facts = world.build("id")
    assert (facts["files"], facts["parts"], facts["entries"]) == (1, 1, 10)
    assert len(index_files(world.table)) == 2


def test_many_small_parts_become_one(tmp_path: Path) -> None:
    world = world_of(tmp_path, files=MERGE_ABOVE + 2)
    assert world.build("id", files_per_job=1)["parts"] == MERGE_ABOVE + 2
    world.table.publish(world.table.staged([rows(500, 10)]))
    built = world.start("id").run()
    assert built.arg.partition_names() == ["0"]
    facts = built.finish()
    assert (facts["parts"], facts["files"], facts["entries"]) == (1, MERGE_ABOVE + 3, (MERGE_ABOVE + 3) * 10)
    for key in (0, 57, 179, 505):
        assert len(world.rows_with("id", key)) == 1
    assert len(index_files(world.table)) == 2
    assert world.start("id").arg.partition_count == 0


def test_a_part_that_has_lost_most_of_its_files_is_made_again() -> None:
    part = IndexPart(files=["a", "b", "", "d", "e"])
    index = IndexManifest(column="v", field_id=1, encoding="int", snapshot_id=1, parts=[part])

    def rebuilt(*present: str) -> list[int]:
        files = [DataFileSeen(path, "PARQUET", 10) for path in present]
        return parts_to_rebuild(index, files, 256)

    assert rebuilt("a", "b", "d", "new") == []
    assert rebuilt("a", "b", "new") == [0]
    assert rebuilt("new") == []


def test_parts_that_are_large_are_kept_however_many_there_are() -> None:
    """So a build never indexes the whole of a large table again and again."""

    def index(files: int) -> IndexManifest:
        parts = [IndexPart(files=[f"{part}-{file}" for file in range(files)]) for part in range(40)]
        return IndexManifest(column="v", field_id=1, encoding="int", snapshot_id=1, parts=parts)

    def rebuilt(files: int, rows: int) -> list[int]:
        paths = [path for part in index(files).parts for path in part.files]
        present = [DataFileSeen(path, "PARQUET", rows) for path in paths]
        return parts_to_rebuild(index(files), present, 256)

    assert rebuilt(10, 1000) == list(range(40))
    assert rebuilt(200, 1000) == []
    assert rebuilt(10, 2_000_000) == []


def test_parts_that_an_index_has_replaced_are_removed_and_nothing_else(world: Indexing) -> None:
    """C18, P13: also by a sweep that is repeated, or was cut short."""
    world.build("id")
    before = index_files(world.table)
    world.table.publish(world.table.staged([rows(500, 10)]))
    built = world.start("id", full=True).run()
    facts = built.commit().facts
    assert before < index_files(world.table)
    built.sweep(facts)
    after = index_files(world.table)
    assert not before & after
    assert len(after) == 2
    assert built.sweep(facts) == 0
    assert len(world.rows_with("id", 5, 505)) == 2


def test_a_build_that_is_aborted_leaves_nothing_and_the_index_as_it_was(world: Indexing) -> None:
    """P9"""
    world.build("id")
    before = index_files(world.table)
    built = world.start("id", full=True).run()
    assert built.sweep({}, "cancelled") > 0
    assert index_files(world.table) == before
    assert len(world.rows_with("id", 5)) == 1


def test_maintenance_leaves_indexes_alone_and_indexes_bear_it(tmp_path: Path) -> None:
    """P13: no snapshot refers to the files of an index; files that it covers come and go."""
    world = world_of(tmp_path, files=3)
    world.build("id")
    world.table.publish(world.table.staged([rows(100, 10)]), IcebergOverwrite())
    before = index_files(world.table)
    for path in local(world.table.location).rglob("*"):
        os.utime(path, (1.0, 1.0))
    Run.of(world.table, ExpireSnapshots(), older_than="0s").finish()
    Run.of(world.table, RemoveOrphans(), older_than="1d", dry_run=False).finish()
    assert index_files(world.table) == before
    assert world.rows_with("id", 105) == [{"id": 105, "kind": "k0"}]
    assert world.rows_with("id", 5) == []
    assert world.build("id")["files"] == 1
    assert world.rows_with("id", 105) == [{"id": 105, "kind": "k0"}]


def test_a_sweep_that_comes_after_the_next_build_removes_no_part(world: Indexing) -> None:
    first = world.start("id").run()
    facts = first.commit().facts
    world.table.publish(world.table.staged([rows(500, 10)]))
    world.build("id")
    assert any(name.endswith(".run") for name in index_files(world.table))
    first.sweep(facts)
    assert not any(name.endswith(".run") for name in index_files(world.table))
    assert len(world.rows_with("id", 5, 505)) == 2
    assert len(world.narrowed("id", 5)) == 1


def test_an_index_that_has_changed_since_the_build_began_is_not_overwritten(world: Indexing) -> None:
    first, second = world.start("id").run(), world.start("id").run()
    first.finish()
    with pytest.raises(Conflict, match="has changed since"):
        second.commit()


def test_a_commit_that_was_prepared_in_vain_leaves_no_manifest(world: Indexing) -> None:
    built = world.start("id").run()
    before = index_files(world.table)
    IndexPublish().prepare(built.context()).discard()
    assert index_files(world.table) == before


# -- jobs --------------------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data files that jobs open from here on."""
    opened: list[str] = []
    real = index_job.open_data_file

    def counting(build: Any, path: str) -> Any:
        opened.append(path)
        return real(build, path)

    monkeypatch.setattr(index_job, "open_data_file", counting)
    return opened


def test_a_checkpoint_stays_small_however_often_a_job_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O9: ``SavingJob`` refuses one of more than 1 KiB; no finished file is read again."""
    world = world_of(tmp_path, files=40)
    opened = counted(monkeypatch)
    built = world.start("id")
    for dies_after in [3, 1, 2, *[1] * 33]:
        with pytest.raises(Cancelled):
            built.attempt("0", dies_after)
    built.attempt("0")
    assert opened == world.table.data_files()
    assert built.finish()["entries"] == 400
    assert len(world.rows_with("id", 5, 35, 395)) == 3


def test_a_job_whose_runs_are_gone_begins_again(world: Indexing) -> None:
    built = world.start("id")
    with pytest.raises(Cancelled):
        built.attempt("0", 3)
    for path in index_folder(world).rglob("*.run"):
        path.unlink()
    with pytest.raises(CorruptRecord, match="is missing"):
        built.attempt("0")
    built.attempt("0")
    assert built.finish()["entries"] == 60


def test_keys_beyond_memory_are_written_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is the same; no entry occurs twice."""
    monkeypatch.setattr(index_job, "BATCH_ROWS", 16)
    sizes = {"run_bytes": 200, "batch_bytes": 100, "fan_in": 3}
    monkeypatch.setattr("distop.lake.writing.sorting.sort_rows.__kwdefaults__", sizes)
    values = [n % 50 for n in range(400)]
    world = table_of(tmp_path, pa.array(values), per_file=100)
    facts = world.build("v")
    assert facts["entries"] == 200
    assert len(world.rows_with("v", 17)) == 8


def test_files_that_cannot_be_indexed_are_left_out_and_opened(world: Indexing) -> None:
    """Gone, or damaged: the build does not wait for them for ever."""
    files = world.table.data_files()
    kept = local(files[1]).read_bytes()
    local(files[1]).unlink()
    local(files[3]).write_bytes(b"no Parquet")
    footer = pq.ParquetFile(local(files[4])).metadata.serialized_size + 8
    whole = local(files[4]).read_bytes()
    local(files[4]).write_bytes(whole[:4] + bytes(len(whole) - footer - 4) + whole[-footer:])
    facts = world.build("id", files_per_job=6)
    assert (facts["files"], facts["leftOut"]) == (3, 3)
    assert set(world.narrowed("id", 5)) == {files[0], files[1], files[3], files[4]}
    local(files[1]).write_bytes(kept)
    again = world.build("id")
    assert (again["newFiles"], again["files"], again["leftOut"]) == (3, 4, 2)


def test_a_column_that_is_younger_than_a_file_is_null_there() -> None:
    field = pa.field("a", pa.int64(), metadata={b"PARQUET:field_id": b"1"})
    assert index_job.column_in(pa.schema([field]), 2, []) is None
    assert index_job.column_in(pa.schema([field]), 1, []) == "a"
    plain = pa.schema([("old", pa.int64())])
    assert index_job.column_in(plain, 2, ["new", "old"]) == "old"
    assert index_job.column_in(plain, 2, ["new"]) is None
    with pytest.raises(Exception, match="no field ids"):
        index_job.column_in(plain, 2, [])


def test_a_result_and_a_checkpoint_of_many_files_are_small() -> None:
    places = FilePositions(range(1000))
    assert FilePositions.read(str(places)) == places
    assert FilePositions.read("") == set()
    assert len(msgspec.json.encode(PartResult(part="x" * 100, left_out=str(places)))) < 600


def test_jobs_are_cut_by_files_and_by_rows() -> None:
    def files(*rows: int) -> list[DataFileSeen]:
        return [DataFileSeen(f"f{n}", "PARQUET", count) for n, count in enumerate(rows)]

    assert cut_into_jobs([], 10) == [0]
    assert cut_into_jobs(files(1, 1, 1, 1, 1), 2) == [0, 2, 4, 5]
    assert cut_into_jobs(files(30_000_000, 3_000_000, 1, 90_000_000, 1), 10) == [0, 1, 3, 4, 5]


def test_a_table_of_no_files_has_an_index_of_no_parts(tmp_path: Path) -> None:
    """O6"""
    world = world_of(tmp_path, files=1)
    world.table.publish(world.table.start(0), IcebergOverwrite())
    built = world.start("id")
    assert built.arg.partition_count == 0
    assert built.finish()["files"] == 0
    assert world.rows_with("id", 1) == []


def test_the_plan_and_what_jobs_report_stay_small(tmp_path: Path) -> None:
    """etcd holds neither the names of files nor their content."""
    world = world_of(tmp_path, files=40)
    built = world.start("id", files_per_job=20).run()
    assert "0-7-0-0.parquet" not in msgspec.json.encode(built.arg).decode()
    for record in built.jobs.values():
        assert isinstance(record, JobRecord)
        assert len(msgspec.json.encode(record)) < 600
    assert BuildIndex.retry.attempts is None
