"""Deletion against ``Table.delete`` of pyiceberg: of the same table, whose files pyiceberg has written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from warnings import catch_warnings, simplefilter

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distop.catalog.catalog import EtcdCatalog
from distop.lake.layout.model import Layout
from distop.metastore.etcd.embedded import EtcdProcess
from distop.spark_jobs.delete.operation import Delete
from support.tables.catalogs import make_catalog
from support.tables.maintaining import Run
from support.tables.publishing import Table

COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("x", pa.float64()), ("t", pa.string())])
PREDICATES = [
    "n < 2",
    "n >= 2 and t = 'a'",
    "n = 1 or n = 3",
    "n != 2 and n is not null",
    "n in (1, 2, 99)",
    "t not in ('a', 'c') and t is not null",
    "t like 'a%'",
    "n is null",
    "n is not null and x > 1.0 and x is not nan",
    "not (n < 2)",
    "x is nan",
    "not (n = 1 or t = 'b') and n is not null and t is not null",
    "n between 1 and 2 and x < 2.0",
    "n = 77",
    "id >= 0",
]
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(1, 3),
        st.none() | st.sampled_from([0.5, 1.5, 2.5, math.nan]),
        st.none() | st.sampled_from(["a", "ab", "b", "c"]),
    ),
    min_size=1,
    max_size=5,
)
_names = count()


@pytest.fixture
def catalog(etcd: EtcdProcess, prefix: str, tmp_path: Path) -> Iterator[EtcdCatalog]:
    with make_catalog(etcd, prefix, tmp_path) as made:
        yield made  # type: ignore[misc]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(ROWS, min_size=1, max_size=2), where=st.sampled_from(PREDICATES))
def test_what_is_left_is_what_pyiceberg_leaves(
    catalog: EtcdCatalog, files: list[list[tuple[int | None, float | None, str | None]]], where: str
) -> None:
    """P14: NULL and NaN among them. pyiceberg is not asked where it is no judge: it takes ``n != 2`` for true
    of a file of nothing but NULL, keeps a row of which one side of OR is true, the other unknown, and has NaN
    above nothing (``tests/truth/predicates.py`` asks DuckDB)."""
    theirs = catalog.create_table(f"default.t{next(_names)}", COLUMNS)
    ids = count()
    for file in files:
        names = ("n", "x", "t")
        rows = [{"id": next(ids), **dict(zip(names, row, strict=True))} for row in file]
        theirs.append(pa.Table.from_pylist(rows, COLUMNS))
    ours = Table("flights", theirs.location(), Layout.of(theirs.metadata))
    ours.replace(theirs.metadata_location, theirs.metadata.current_snapshot_id)
    Run.of(ours, Delete(), where=where).finish()
    with catch_warnings():
        simplefilter("ignore")  # that there is nothing to delete
        theirs.delete(where)
    assert ours.ids() == sorted(theirs.scan().to_arrow()["id"].to_pylist())
