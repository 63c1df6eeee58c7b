"""The DataFrame of an ingest with ``transform``: a query over the content of the files.

The files are read as by any ingest: the same frozen list of files and splits, the same types, the same
errors. Spark's own readers differ in all of these (which texts mean NULL, how a time is written, what a row
with too few values means). So ``source`` is a DataFrame whose partitions are the splits.

The query is a SELECT over that one view, with functions that work on values (checklist S1). Spark SQL can run
programs (``TRANSFORM ... USING``), call Java (``reflect``), read any file (``text.`/path```) and the
environment (``${env:NAME}``). So Spark's parser reads it, and every part of the result must be on a list: of
kinds of plans, of groups of functions, of names of relations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from distop.errors import InvalidArgument, NeedsSpark
from distop.lake.storage.allowed import adopt, lists
from distop.operations import OperationArg
from distop.operations.arguments import invalid
from distop.sources.formats.bad_rows import Fail
from distop.sources.formats.reader import check_columns
from distop.spark_jobs.ingest.job import Conversion, FilesSplit, GoodRows
from distop.spark_jobs.ingest.plan import IngestPlan
from distop.spark_jobs.spark_types import arrow_schema, spark_schema

MAX_PARTS = 20_000
"""Most parts of a parsed query."""

_CATALYST = "org.apache.spark.sql.catalyst."


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLANS = _words("""
    Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit LocalRelation
    Offset OneRowRelation Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Tail Union
    UnresolvedHint UnresolvedWith Unpivot WithWindowDefinition
""")
_UNRESOLVED = _words("""
    MultiAlias UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction
    UnresolvedGenerator UnresolvedHaving UnresolvedInlineTable UnresolvedOrdinal UnresolvedRegex
    UnresolvedRelation UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedSubqueryColumnAliases
    UnresolvedTVFAliases UnresolvedTableValuedFunction
""")
"""Of the package ``analysis``: names that are resolved later."""

_GROUPS = _words("""
    agg_funcs array_funcs bitwise_funcs collection_funcs conditional_funcs conversion_funcs csv_funcs
    datetime_funcs generator_funcs hash_funcs json_funcs lambda_funcs map_funcs math_funcs predicate_funcs
    sketch_funcs st_funcs string_funcs struct_funcs url_funcs variant_funcs vector_funcs window_funcs
""")
"""Groups of functions, from Spark's documentation, that work only on their arguments."""
_SINGLE = _words("""
    aes_decrypt aes_encrypt assert_true bitmap_bit_position bitmap_bucket_number bitmap_count hmac
    monotonically_increasing_id raise_error spark_partition_id try_aes_decrypt typeof uuid
""")
"""Of other groups: ``misc_funcs`` also has those that call Java; those of XML and Protobuf open files."""
_TABLES = _words("""
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack
    variant_explode variant_explode_outer
""")
"""Functions whose value is a table."""

_HINT = "a query sees the rows of the files, as source, and nothing else"


def check_query(session: SparkSession, sql: str, view: str) -> None:
    """Refuse a query that is more than a query over a view.

    Parameters
    ----------
    session:
        The session that will run it; is set to read the text literally, and no name of a table as a path.

    Raises
    ------
    InvalidArgument
        ``details["field"]`` is ``transform``.
    pyspark.errors.ParseException
        It is not SQL.
    """
    session.conf.set("spark.sql.variable.substitute", "false")
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    _Check(session, view).over(session._jsparkSession.sessionState().sqlParser().parsePlan(sql))


class _Check:
    """Walks over the result of Spark's parser for one query."""

    def __init__(self, session: SparkSession, view: str) -> None:
        self._session, self._view = session, view
        jvm: Any = session._jvm
        self._functions = _functions_of(jvm)
        self._tree, self._iterable, self._product = (
            jvm.py4j.reflection.ReflectionUtil.classForName(name)
            for name in (f"{_CATALYST}trees.TreeNode", "scala.collection.Iterable", "scala.Product")
        )
        self._named = {view}
        """The names that the query itself defines, in the form that Spark compares."""
        self._read = set[str]()

    def over(self, plan: JavaObject) -> None:
        waiting: list[Any] = [plan]
        parts = 0
        while waiting:
            part = waiting.pop()
            if not isinstance(part, JavaObject):
                continue
            parts += 1
            if parts > MAX_PARTS:
                raise _refused(f"it has more than {MAX_PARTS:,} parts")
            if self._tree.isInstance(part):
                self._check(part)
            if self._iterable.isInstance(part):
                waiting.extend(_items(part.iterator()))
            elif self._product.isInstance(part):
                waiting.extend(_items(part.productIterator()))
        for name in sorted(self._read):
            # A name in the query is undefined outside of its part, and may mean a table there.
            if name not in self._named or (name != self._view and self._session.catalog.tableExists(name)):
                raise _refused(f"it reads {name!r}")

    def _check(self, part: Any) -> None:
        package, _, kind = part.getClass().getName().removeprefix(_CATALYST).rpartition(".")
        kind = kind.removesuffix("$")
        if package in ("expressions", "expressions.aggregate"):
            return  # operators; a function call has no class of its own yet
        known = {"plans.logical": _PLANS, "analysis": _UNRESOLVED}.get(package, frozenset())
        if kind not in known:
            raise _refused(f"it has a part that no query over rows needs ({kind})")
        match kind:
            case "UnresolvedRelation":
                self._read.add(self._single(part.multipartIdentifier()).lower())
            case "UnresolvedWith":
                self._named.update(
                    str(each.productElement(0)).lower() for each in _items(part.cteRelations().iterator())
                )
            case "UnresolvedFunction":
                self._check_function(self._single(part.nameParts()))
            case "UnresolvedGenerator":
                self._check_function(part.name().unquotedString())
            case "UnresolvedTableValuedFunction":
                name = self._single(part.name())
                if name.lower() not in _TABLES:
                    raise _refused(f"it calls {name!r}")

    def _check_function(self, name: str) -> None:
        if name.lower() not in self._functions:
            raise _refused(f"it calls {name!r}")

    @staticmethod
    def _single(name: Any) -> str:
        text = str(name.mkString("."))
        if name.length() != 1:
            raise _refused(f"it names {text!r}")
        return text


@cache
def _functions_of(jvm: Any) -> frozenset[str]:
    """The names of functions that a query may call."""
    infos = jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()
    return _SINGLE.union(info.getName().lower() for info in infos if info.getGroup() in _GROUPS)


def _items(iterator: Any) -> list[Any]:
    items = []
    while iterator.hasNext():
        items.append(iterator.next())
    return items


def _refused(why: str) -> Exception:
    return invalid("transform", f"the query is refused: {why}", _HINT)


VIEW = "source"
"""The query's name for the files' rows."""
BATCH_ROWS = 1 << 16


def transformed(session: SparkSession | None, operation: OperationArg) -> DataFrame:
    """The result of the query on the files.

    Raises
    ------
    InvalidArgument
        It is not a valid Spark query, it is more than a query over the files, or its rows do not fit the
        table.
    NeedsSpark
        There is no Spark here.
    """
    if session is None:
        raise NeedsSpark(f"{operation.id} transforms its rows with Spark SQL")
    plan = IngestPlan.of(operation)
    # A separate session: views, settings and functions of other operations must not affect it.
    own = session.newSession()
    source_of(own, operation).createOrReplaceTempView(VIEW)
    try:
        # As a subquery it can only be a query: no statement that changes something.
        sql = f"SELECT * FROM (\n{plan.transform}\n)"
        check_query(own, sql, VIEW)
        frame = own.sql(sql)
        given = arrow_schema(frame.schema)
    except AnalysisException as error:
        raise InvalidArgument(
            f"Spark rejects the query: {_first_lines(str(error))}", details={"field": "transform"}
        ) from None
    check_columns(given, plan.table_layout.arrow_schema)
    return frame


def source_of(session: SparkSession, operation: OperationArg) -> DataFrame:
    """The rows of an ingest's files, a partition for each split."""
    plan = IngestPlan.of(operation)
    schema = _types_of_source(plan)
    splits = len(plan.cuts) - 1
    numbered = session.range(0, splits, 1, splits)
    return numbered.mapInArrow(_ReadSplits(operation), schema)


def _first_lines(text: str) -> str:
    """Without the plan that Spark appends."""
    return " ".join(text.partition("\n\n")[0].partition(";\n")[0].split())[:600]


@dataclass(frozen=True)
class _ReadSplits:
    """A function over the numbers of splits; yields their rows. Runs in Spark's workers."""

    operation: OperationArg
    allowed: Mapping[str, str] = field(default_factory=lists)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        adopt(self.allowed)
        plan = IngestPlan.of(self.operation)
        schema = to_arrow_schema(_types_of_source(plan), timezone="UTC")
        rows = Conversion(schema, schema.names)
        for batch in batches:
            for split in batch.column(0).to_pylist():
                for table in split_rows(self.operation, split, rows):
                    yield from table.to_batches(max_chunksize=BATCH_ROWS)


def split_rows(
    operation: OperationArg, split: int, conversion: Conversion | None = None
) -> Iterator[pa.Table]:
    """The rows of one split; as rows of the table, or as ``conversion`` returns them."""
    plan = IngestPlan.of(operation)

    def look() -> None:
        """Spark ends a task itself when its rows are not needed."""

    rows = GoodRows(conversion or Conversion.to_table(plan), Fail(), look)
    with closing(FilesSplit(plan, str(split), rows, look).rows()) as blocks:
        for block in blocks:
            yield block.table


def _types_of_source(plan: IngestPlan) -> StructType:
    return spark_schema(plan.source_columns, "schema", "give it another type with --schema, such as string")
