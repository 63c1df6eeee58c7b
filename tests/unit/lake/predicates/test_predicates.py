"""Predicates: their grammar, what they mean, and what is refused."""

import math
from datetime import date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.lake.predicates import syntax
from distop.lake.predicates.binding import chosen, others, predicate_of, truth
from support.refusals import refused
from truth.predicates import Case, Reference, cases, differences_of

SCHEMA: Schema = parse_schema(
    {
        "n": "long",
        "s": "string",
        "f": "double",
        "t": "timestamptz",
        "odd name": "int",
        "d": "decimal(9,2)",
        "b": "binary",
        "u": "uuid",
        "y": "boolean",
        "day": "date",
        "w": "timestamp",
        "r": "float",
    }
)
EPOCH = datetime.fromisoformat("1970-01-01")
ROWS = pa.table(
    {
        "n": [1, 2, 3, None],
        "s": ["ab", "b", None, "abc"],
        "f": [1.5, math.nan, None, -0.0],
        "t": pa.array([0, 1_000_000, None, 3_000_000], pa.timestamp("us", tz="UTC")),
        "odd name": pa.array([1, 2, 3, 4], pa.int32()),
        "d": pa.array([Decimal("1.50"), Decimal("10.50"), None, Decimal("-0.07")], pa.decimal128(9, 2)),
        "b": pa.array([b"abc", b"\xff\\", None, b""], pa.binary()),
        "u": pa.array([b"\0" * 16, b"\x80" + b"\0" * 15, None, b"\0" * 15 + b"\1"], pa.uuid()),
        "y": [True, False, None, True],
        "day": [date(1970, 1, 1), date(2024, 2, 29), None, date(1, 1, 1)],
        "w": pa.array([EPOCH, datetime.fromisoformat("2024-02-29T12:00:00.000001"), None, EPOCH]),
        "r": pa.array([0.1, 16777216.0, None, math.nan], pa.float32()),
    }
)

MEANINGS: dict[str, list[int]] = {
    "n > 1": [1, 2],
    "n > 1 and s = 'b'": [1],
    "n = 1 or s like 'ab%'": [0, 3],
    "not n = 1": [1, 2],
    "n != 1": [1, 2],
    "n in (1, 3)": [0, 2],
    "n not in (1, 3)": [1],
    "not (n in (1, 3) or s = 'b')": [],
    "n between 2 and 3": [1, 2],
    "n not between 2 and 3": [0],
    "n is null": [3],
    "n is null or n > 2": [2, 3],
    "s is not null": [0, 1, 3],
    # Numbers that no integer equals
    "n >= 2.5": [2],
    "n < 2.5": [0, 1],
    "n = 1.5": [],
    "n != 1.5": [0, 1, 2],
    "n in (1.5, 2.0)": [1],
    "n not in (1.5, 2)": [0, 2],
    "n > 99999999999999999999": [],
    "not n > 99999999999999999999": [0, 1, 2],
    "n > -1e300": [0, 1, 2],
    # NaN is equal to itself and greater than all else; both zeros are equal
    "f is nan": [1],
    "f is not nan": [0, 3],
    "n is nan": [],
    "n is not nan": [0, 1, 2],
    "f > 1": [0, 1],
    "f >= 'nan'": [1],
    "f > 'inf'": [1],
    "f < 'nan'": [0, 3],
    "not f > 1": [3],
    "f = 0": [3],
    "f in (0.0, 3.0)": [3],
    "f not in (0.0, 3.0)": [0, 1],
    "f in ('nan', 1.5)": [0, 1],
    "f != 7.0": [0, 1, 3],
    "f < 1e400": [0, 3],
    "r = 0.1": [0],
    "r > 0.1": [1, 3],
    "r >= 16777217": [1, 3],
    # Decimals
    "d = 1.5": [0],
    "d > 1.5": [1],
    "d >= 1.500 and d < 9999999.5": [0, 1],
    "d in (1.5, 10.50)": [0, 1],
    "d not in (1.5, 3.0)": [1, 3],
    "not d > 10": [0, 3],
    "d > 1.495": [0, 1],
    "d = 1.505": [],
    "d < 99999999999": [0, 1, 3],
    "d = '1.5'": [0],
    # Times
    "t >= '1970-01-01T00:00:01+00:00'": [1, 3],
    "t >= '1970-01-01T00:00:01Z'": [1, 3],
    "t >= '1970-01-01T01:00:01+01:00'": [1, 3],
    "t >= '1970-01-01 00:00:01'": [1, 3],
    "t > '1970-01-01T00:00:00.9999990Z'": [1, 3],
    "w >= '1970-01-01T00:00:01Z'": [1],
    "w = '2024-02-29T12:00:00.000001'": [1],
    "w = '1970-01-01'": [0, 3],
    "day >= '1970-01-01'": [0, 1],
    # Texts
    "s like 'a_'": [0],
    "s like 'a_c%'": [3],
    "s like '%b%'": [0, 1, 3],
    "s not like '_b%'": [1],
    r"s like 'a\_%'": [],
    "s >= 'b'": [1],
    # Other types
    "b = 'abc'": [0],
    r"b = '\xff\x5C'": [1],
    "b < 'b'": [0, 3],
    "u > '00000000-0000-0000-0000-000000000000'": [1, 3],
    "y = true": [0, 3],
    "y > false": [0, 3],
    "y in (true, false)": [0, 1, 3],
    # Grammar
    '"odd name" >= 3': [2, 3],
    "2 > n": [0],
    "NOT n = 1 AND Not s IS nUll": [1],
    "n = 1 or n = 2 and s = 'x'": [0],
    "true": [0, 1, 2, 3],
    "false": [],
    "n = 1 or true": [0, 1, 2, 3],
}


@pytest.mark.parametrize(("text", "kept"), MEANINGS.items())
def test_a_predicate_selects_the_rows_that_sql_would(text: str, kept: list[int]) -> None:
    """Where the answer is unknown because of a NULL, a row is left out."""
    rows = ROWS.append_column("row", pa.array(range(4)))
    predicate = predicate_of(text, SCHEMA)
    assert chosen(predicate, rows)["row"].to_pylist() == kept
    assert others(predicate, rows)["row"].to_pylist() == [row for row in range(4) if row not in kept]


def test_an_answer_is_true_false_or_unknown() -> None:
    found = {text: truth(predicate_of(text, SCHEMA), ROWS).to_pylist() for text in ("n > 1", "not n > 1.5")}
    assert found == {"n > 1": [False, True, True, None], "not n > 1.5": [True, False, False, None]}
    assert truth(predicate_of("n > 1 or y = true", SCHEMA), ROWS).to_pylist() == [True, True, True, True]


def test_columns_below_structs_are_compared() -> None:
    """Not those of lists and maps. A name may contain a dot."""
    fields = NestedField(3, "x", LongType()), NestedField(4, "s.t", StringType())
    schema = Schema(NestedField(1, "a", StructType(*fields)), NestedField(2, "a.y", LongType()))
    rows = pa.table(
        {
            "a": [{"x": 1, "s.t": "b"}, None, {"x": None, "s.t": "c"}],
            "a.y": pa.array([7, 8, None], pa.int64()),
        }
    )
    for text, found in {
        "a.x = 1": [True, None, None],
        "a.x is null": [False, True, True],
        "a.\"s.t\" > 'b'": [False, None, True],
        "a.y < 8": [True, False, None],
        '"a.y" = 8': [False, True, None],
    }.items():
        assert truth(predicate_of(text, schema), rows).to_pylist() == found, text
    with refused("filter", "is nested"):
        predicate_of("a = 1", schema)


def test_a_predicate_names_its_columns() -> None:
    text = 'not (a > 1 or b is null) and "c d" in (1, 2) and a.x = 1 and "say ""so""" is nan'
    assert syntax.columns_of(syntax.parse(text)) == {("a",), ("b",), ("c d",), ("a", "x"), ('say "so"',)}
    assert syntax.columns_of(syntax.parse("true")) == set()


NO_PREDICATES = (
    "",
    "n >",
    "n > 1 or",
    "drop table",
    "n like 1",
    "n = 'a' 'b'",
    "n = 5x",
    '"" = 1',
    "n in ()",
    "n is 5",
    "n = 'it",
    "1",
    "n between 1",
    "not",
    "n = -",
    "(n = 1",
    "n = 1)",
    "n = 1; n = 2",
    "n.1 = 2",
    "n == = 1",
)


@pytest.mark.parametrize("text", NO_PREDICATES)
def test_text_that_is_no_predicate_is_refused(text: str) -> None:
    with refused("where", "cannot be parsed"):
        syntax.parse(text, "where")


@pytest.mark.parametrize("text", ["(" * 300 + "n = 1" + ")" * 300, "not " * 300 + "n = 1", "n = 1e999999999"])
def test_a_predicate_that_would_take_too_much_is_refused(text: str) -> None:
    with refused("filter", "nested|exponent"):
        syntax.parse(text)


def test_many_conditions_beside_each_other_are_fine() -> None:
    text = " or ".join(f"n = {number}" for number in range(5000))
    assert chosen(predicate_of(text, SCHEMA), ROWS).num_rows == 3


MISFITS = {
    "nope = 1": "no column 'nope'",
    "n = 'x'": "'n' is long.*'x'",
    "n = '1.5'": "'n' is long.*'1.5'",
    "n = '9999999999999999999'": "'n' is long",
    "n = true": "'n' is long.*true",
    "y = 1": "'y' is boolean.*1",
    "y = 'yes'": "'y' is boolean.*'yes'",
    "t > 'yesterday'": "'t' is timestamptz.*'yesterday'",
    "t > '1970-01-01T00:00:00.0000001Z'": "six digits",
    "t > 5": "'t' is timestamptz.*5",
    "w > '1970-01-01T00:00:00+01:00'": "no zone",
    "day = 5": "'day' is date.*5",
    "day = '2024-02-30'": "'day' is date.*'2024-02-30'",
    "day = '2024-02-29T00:00:00'": "'day' is date",
    "s > 1": "'s' is string.*1.*quotes",
    "d = '1.505'": "'d' is decimal.*'1.505'",
    "b = 'é'": "'b' is binary.*'é'",
    r"b = 'a\c'": "'b' is binary",
    "b = 5": "'b' is binary.*5",
    "u = 'f79c3e09'": "'u' is uuid.*'f79c3e09'",
    "n like 'a%'": "'n' is long",
    r"s like 'a\b'": "backslash",
    f"s like '{'%a' * 100_000}'": "'%a%a.*… is too long",
    "f = 'much'": "'f' is double.*'much'",
}


@pytest.mark.parametrize(("text", "says"), MISFITS.items())
def test_a_value_that_does_not_fit_its_column_is_refused_by_column_and_value(text: str, says: str) -> None:
    with refused("delete_where", says):
        predicate_of(text, SCHEMA, "delete_where")


@pytest.mark.parametrize("kind", ["decimal(9,2)", "decimal(38,2)", "decimal(38,38)"])
def test_numbers_beyond_a_decimal_are_compared_with_all_of_it(kind: str) -> None:
    """P3: whatever the number of its digits."""
    schema = parse_schema({"d": kind})
    column = Layout.create(schema).arrow_schema.field("d")
    ends = [Decimal((sign, (9,) * column.type.precision, -column.type.scale)) for sign in (1, 0)]
    rows = pa.table({"d": pa.array([ends[0], Decimal(0), ends[1], None], column.type)})
    for text, found in {
        "d > -1e36": [0, 1, 2],
        "d <= -1e36": [],
        "d < 1e36": [0, 1, 2],
        f"d = {ends[0]:f}": [0],
        f"d > {ends[0]:f}": [1, 2],
        "d in (-1e40, 0)": [1],
    }.items():
        kept = chosen(predicate_of(text, schema), rows.append_column("at", pa.array(range(4))))
        assert kept["at"].to_pylist() == found, text


def test_the_explicit_cases_are_those_of_duckdb() -> None:
    """Where its grammar has the same words, and its conversions of literals are exact."""
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    rows = ROWS.set_column(7, "u", pa.array([None] * 4, pa.string())).append_column("row", pa.array(range(4)))
    connection.register("rows", rows)
    left_out = ("nan", "like", "1e400", "99999999999999999999", "u >", "b ")
    tried = 0
    for text, kept in MEANINGS.items():
        if not any(word in text for word in left_out):
            found = connection.execute(f"SELECT row FROM rows WHERE {text} ORDER BY row").fetchall()
            assert [row for (row,) in found] == kept, text
            tried += 1
    assert tried > 50


@settings(max_examples=15, phases=[Phase.reuse, Phase.generate])  # to shrink a case would take minutes
@given(case=cases(predicates=3))
def test_every_way_to_select_rows_gives_the_answer_of_duckdb(case: Case) -> None:
    """P3, P14, V2: reads with and without an index, deletions, ingests, merges, rules, compaction, and
    what others read. ``make truth`` tries many."""
    assert differences_of(case, Reference(), len(case.conditions[0].text)) == []
