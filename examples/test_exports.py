"""How a type that reads a table is tested: on a small one, which Trial publishes."""

import pyarrow as pa
from exports import CsvExport

from distop import Trial


def test_each_partition_becomes_a_file(tmp_path):
    rows = pa.table({"id": [1, 2, 3], "kind": ["a", "b", "a"]})
    location, partitioned = f"{tmp_path}/table", {"partitionBy": ["kind"]}
    trial = Trial(
        CsvExport(), {"to": f"{tmp_path}/csv"}, table=rows, location=location, table_options=partitioned
    )
    assert [result["rows"] for result in trial.run_all()] == [2, 1]
    assert len(list((tmp_path / "csv").glob("*.csv"))) == 2
