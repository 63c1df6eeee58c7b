"""What the query of an ingest may be, on a real Spark."""

from pathlib import Path
from typing import Any

import pytest

from distop.errors import InvalidArgument
from distop.metastore.records.operation import OperationArg
from distop.spark_jobs.ingest.transform import transformed
from support.sources.ingesting import Ingesting

pytestmark = pytest.mark.spark

SECRET = "for nobody"


def asked(folder: Path, query: str) -> OperationArg:
    source = folder / "1.csv"
    source.write_text("id,kind\n1,a\n2,b\n")
    table = Ingesting(folder, {"schema": ["id: long", "kind: string"]})
    return table.start(paths=[str(source)], transform=query)


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Path:
    """A file, a table of Spark and a property of its process, with what only they may know."""
    path = tmp_path_factory.mktemp("secrets") / "secret"
    path.write_text(SECRET)
    spark._jvm.java.lang.System.setProperty("distop.test", SECRET)
    spark.sql("CREATE OR REPLACE GLOBAL TEMP VIEW hidden AS SELECT 1L AS id")
    at = path.parent / "others"
    spark.sql(f"CREATE TABLE IF NOT EXISTS others (id LONG) USING parquet LOCATION '{at}'")
    return path


ATTACKS = [
    "SELECT TRANSFORM (id) USING 'touch {mark}' AS (kind STRING) FROM source",
    "WITH a AS (SELECT TRANSFORM (id) USING 'touch {mark}' AS (kind STRING) FROM source) SELECT * FROM a",
    "SELECT (SELECT max(value) FROM text.`{secret}`) AS kind",
    "SELECT value AS kind FROM text.`{secret}`",
    "SELECT value AS kind FROM source) JOIN (SELECT * FROM text.`{secret}`",
    "SELECT value AS kind FROM IDENTIFIER('text.`{secret}`')",
    "SELECT path AS kind FROM binaryFile.`{secret}`",
    "SELECT _c0 AS kind FROM csv.`{secret}` VERSION AS OF 1",
    "SELECT reflect('java.lang.System', 'getProperty', 'distop.test') AS kind",
    "SELECT java_method('java.lang.System', 'getProperty', 'distop.test') AS kind",
    "SELECT try_reflect('java.lang.System', 'getProperty', 'distop.test') AS kind",
    "SELECT `reflect`('java.lang.System', 'getProperty', 'distop.test') AS kind",
    "SELECT builtin.reflect('java.lang.System', 'getProperty', 'distop.test') AS kind",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'getProperty', 'distop.test') AS kind",
    "SELECT CASE WHEN id > 0 THEN reflect('java.lang.System', 'gc') END AS kind FROM source",
    "SELECT transform(array(1), x -> reflect('java.lang.System', 'exit', x))[0] AS kind",
    "SELECT max(kind) OVER w AS kind FROM source WINDOW w AS (ORDER BY reflect('java.lang.System', 'gc'))",
    "SELECT kind FROM source LATERAL VIEW explode(array(reflect('java.lang.System', 'gc'))) t AS x",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '{secret}')).a AS id",
    "SELECT from_protobuf(unbase64('a'), 'A', '{secret}').a AS id",
    "SELECT xpath_string('<!DOCTYPE a SYSTEM \"file:{secret}\"><a/>', 'a') AS kind",
    "SELECT id FROM others",
    "SELECT id FROM default.others",
    "SELECT id FROM spark_catalog.default.others",
    "SELECT source.* FROM source JOIN (WITH others AS (SELECT 1) SELECT * FROM others) JOIN others",
    "SELECT id FROM global_temp.hidden",
    "SELECT kind FROM python_worker_logs()",
    "SELECT message AS kind FROM sql_keywords()",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_query_beyond_the_rows_is_refused(attack: str, secret: Path, tmp_path: Path, spark: Any) -> None:
    """S1: no programs, no Java, no files, no tables of the Spark that it runs on."""
    mark = tmp_path / "mark"
    with pytest.raises(InvalidArgument) as refused:
        transformed(spark, asked(tmp_path, attack.format(secret=secret, mark=mark))).collect()
    assert refused.value.details["field"] == "transform"
    assert SECRET not in str(refused.value)
    assert not mark.exists()


def test_a_query_reads_neither_environment_nor_settings(secret: Path, tmp_path: Path, spark: Any) -> None:
    """S1, S5: what looks like a variable is text."""
    query = "SELECT id, '${system:distop.test} ${env:PATH} ${spark.app.id}' AS kind FROM source LIMIT 1"
    (row,) = transformed(spark, asked(tmp_path, query)).collect()
    assert row.kind == "${system:distop.test} ${env:PATH} ${spark.app.id}"


QUERIES = [
    "SELECT * FROM source",
    "FROM source |> WHERE id > 0",
    "SELECT /*+ REPARTITION(2) */ id, first(kind) AS kind FROM source GROUP BY ALL HAVING count(*) > 0",
    "WITH a AS (SELECT * FROM Source), b AS (TABLE a) SELECT a.id, B.kind FROM a LEFT JOIN b USING (id)",
    "SELECT id, CASE id WHEN 1 THEN 'a' ELSE 'b' END AS kind FROM source ORDER BY id OFFSET 0",
    "SELECT id, max(kind) OVER w AS kind FROM source WINDOW w AS (PARTITION BY id ORDER BY kind)",
    "SELECT id, kind FROM source LATERAL VIEW explode(array(1)) t AS x WHERE id IN (SELECT id FROM source)",
    "SELECT id, kind FROM source, LATERAL (SELECT upper(kind)) WHERE EXISTS (SELECT 1 FROM source)",
    "SELECT col1 AS id, col2 AS kind FROM VALUES (1L, 'a'), (abs(-2L), 'b')",
    "SELECT s.id, substring(kind FROM 1) kind FROM range(2) r CROSS JOIN source s WHERE s.id = r.id + 1",
    "SELECT * EXCEPT (x) FROM (SELECT *, struct(1 AS y).y AS x FROM source) TABLESAMPLE (100 PERCENT)",
    "SELECT id, kind FROM source UNION DISTINCT (SELECT * FROM source INTERSECT SELECT * FROM source)",
    "SELECT id, get_json_object(to_json(struct(kind)), '$.kind') AS kind FROM source CLUSTER BY id",
]


def test_queries_over_the_rows_run(tmp_path: Path, spark: Any) -> None:
    """What SQL is for is taken."""
    for query in QUERIES:
        assert transformed(spark, asked(tmp_path, query)).columns == ["id", "kind"], query
    last = transformed(spark, asked(tmp_path, QUERIES[-1])).collect()
    assert sorted(map(tuple, last)) == [(1, "a"), (2, "b")]
