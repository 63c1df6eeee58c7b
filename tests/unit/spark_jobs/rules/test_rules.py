"""Rules on rows: what they mean, and what they may speak of. DuckDB is real; there is no service."""

import datetime
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from distop.errors import Busy, InvalidArgument, JobFailed, PreconditionFailed
from distop.lake.iceberg.takeover import new_write
from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.lake.rules import engine
from distop.lake.rules.model import RawRules, RuleArgument, RuleSet
from distop.lake.rules.parsing import distinguishable, parse_rules, shown_columns
from distop.metastore.records.table import TableRecord
from distop.operations.api import Plan, PlanRequest, make_plan
from distop.process import workers
from distop.process.workers import Idle
from distop.spark.operation import Write
from distop.spark_jobs.rules.gate import RowChecks, Violation
from support.refusals import refused

SCHEMA = parse_schema(
    {
        "id": "long",
        "n": "int",
        "d": "decimal(10,2)",
        "x": "double",
        "s": "string",
        "t": "timestamptz",
        "u": "uuid",
        "b": "binary",
    }
)


def table(*rows: dict[str, Any]) -> pa.Table:
    empty = dict.fromkeys(column.name for column in SCHEMA.columns)
    return pa.Table.from_pylist([empty | row for row in rows], schema=schema_to_pyarrow(SCHEMA))


def broken(folder: Path, rules: RawRules, *blocks: pa.Table, samples: int = 5) -> dict[str, int]:
    """Name of a rule -> rows that break it."""
    parsed = RuleSet(rules=parse_rules(rules, SCHEMA), samples=samples)
    return {parsed.rules[found.rule].name: found.count for found in checked(folder, parsed, *blocks)}


def checked(folder: Path, rules: RuleSet, *blocks: pa.Table, file: str = "") -> list[Violation]:
    with RowChecks(rules, lambda: folder) as checks:
        for block in blocks:
            checks.check(block, file)
        return checks.finish()


def values(column: str, *found: Any) -> pa.Table:
    return table(*({column: value} for value in found))


@pytest.mark.parametrize(
    ("column", "target", "fit", "misfit"),
    [
        ("id", "smallint", [-32768, 32767], [-32769, 32768]),
        ("id", "int", [-(1 << 31), (1 << 31) - 1], [-(1 << 31) - 1, 1 << 31]),
        ("id", "decimal(3,1)", [99, -99], [100, -100]),
        ("id", "float", [1 << 24], [(1 << 24) + 1]),
        ("n", "byte", [-128, 127], [128, -129]),
        ("d", "int", [Decimal("7.00")], [Decimal("7.50")]),
        ("d", "decimal(3,1)", [Decimal("99.90")], [Decimal("99.95"), Decimal("100.00")]),
        ("x", "long", [-(2.0**63), 3.0], [2.0**63, 0.5, float("inf"), float("nan")]),
        ("x", "float", [0.5, float("nan"), float("inf")], [0.1, 1e300]),
        ("x", "decimal(4,2)", [0.25, -99.99], [100.0, 0.125, float("nan")]),
        ("s", "string(2)", ["", "äé"], ["abc"]),
        ("s", "smallint", ["7", "-32768", "+1"], ["32768", "1.5", " 7", "", "1e2"]),
        ("s", "decimal(4,1)", ["100.5", "1.50"], ["1.55", "1000.0", "x"]),
        ("s", "double", ["1e5", "-0.5"], ["1,5", "", "1 2"]),
        ("s", "date", ["2024-02-29"], ["2023-02-29", "29.02.2024", "2024-2-1"]),
        ("s", "timestamp", ["2024-02-29T10:00:00"], ["2024-02-29", "2024-02-29 25:00:00"]),
        ("b", "binary(2)", [b"ab"], [b"abc"]),
    ],
)
def test_a_value_fits_a_type_if_it_is_the_same_value_in_it(
    tmp_path: Path, column: str, target: str, fit: list[Any], misfit: list[Any]
) -> None:
    """Type range: nothing is rounded or cut off to make it fit, and NULL fits everything."""
    rule = RuleArgument(column=column, type=target, name="fits")
    parsed = RuleSet(rules=parse_rules(rule, SCHEMA), samples=100)
    (found,) = checked(tmp_path, parsed, values(column, None, *fit, *misfit))
    told = [row[column] for row in found.samples]
    assert found.count == len(misfit), f"{told} break it, and not {misfit}"


def test_a_check_is_sql(tmp_path: Path) -> None:
    """NULL keeps a rule, as in SQL; time zones do not depend on the host."""
    rows = table({"id": 1, "n": 2}, {"id": 5}, {"n": 5}, {})
    noon = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
    assert broken(tmp_path, ["id < n", "n BETWEEN 3 AND 5", "id IS NOT NULL OR n IS NOT NULL"], rows) == {
        "check(n BETWEEN 3 AND 5)": 1,
        "check(id IS NOT NULL OR n IS NOT NULL)": 1,
    }
    assert broken(
        tmp_path, ["date_part('hour', t) = 12", "t < '2024-01-01 12:00:00'"], table({"t": noon})
    ) == {"check(t < '2024-01-01 12:00:00')": 1}
    assert broken(tmp_path, [RuleArgument(check="s = 'x') AND (s = 'y'", name="both")], values("s", "x")) == {
        "both": 1
    }
    assert not broken(tmp_path, "S LIKE 'x%' -- upper case, and a comment", values("s", "xy"))
    with refused(error=JobFailed, rule="whole"):
        broken(tmp_path, [RuleArgument(check="CAST(s AS INT) > 0", name="whole"), "id > 0"], values("s", "a"))


def test_rows_are_unique_over_all_blocks(tmp_path: Path) -> None:
    """Rows that repeat the values of another one are counted; those with a NULL are like no other."""
    first = table({"id": 1, "s": "a"}, {"id": 1, "s": "b"}, {"id": 2})
    second = table({"id": 1, "s": "a"}, {"id": 1, "s": "a"}, {"id": 2})
    rules: RawRules = [RuleArgument(unique=["id", "s"]), RuleArgument(unique="id", name="ids")]
    assert broken(tmp_path, rules, first, second) == {"unique(id, s)": 2, "ids": 4}


def test_the_name_of_a_column_is_not_that_of_a_count(tmp_path: Path) -> None:
    schema = parse_schema({"times0": "long", "k0": "long"})
    rules = RuleSet(rules=parse_rules(RuleArgument(unique=["k0", "times0"]), schema))
    (found,) = checked(tmp_path, rules, pa.table({"times0": [100, 100, 7], "k0": [1, 1, 2]}))
    assert (found.count, found.samples) == (1, [{"k0": 1, "times0": 100, "times": 2}])


def test_keys_are_sorted_out_on_disk(tmp_path: Path) -> None:
    """A million keys, one of them twice: they are kept in a file, not in memory."""
    rules = RuleSet(rules=parse_rules(RuleArgument(unique="id"), SCHEMA))
    block = 1 << 19
    with RowChecks(rules, lambda: tmp_path) as checks:
        for at in range(2):
            ids = pa.array(range(at * block, (at + 1) * block), pa.int64())
            checks.check(pa.table({"id": ids}))
        checks.check(pa.table({"id": pa.array([block + 7], pa.int64())}))
        (found,) = checks.finish()
        on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*"))
    assert (found.count, found.samples) == (1, [{"id": block + 7, "times": 2}])
    assert on_disk > 1 << 17


def test_samples_of_rows_that_break_a_rule_are_bounded(tmp_path: Path) -> None:
    """So many rows, and so much of each value; integers that JSON would spoil are text."""
    rules = RuleSet(rules=parse_rules("id < 0", SCHEMA), shown=["s", "b"], samples=2)
    big = 1 << 60
    block = table({"id": big, "s": "y" * 9000, "b": b"\0" * 9000}, {"id": 7})
    (found,) = checked(tmp_path, rules, block, block, block, file="data/f.parquet")
    assert found.count == 6
    assert [row["id"] for row in found.samples] == [str(big), 7]
    assert found.samples[0]["file"] == "data/f.parquet"
    assert all(len(found.samples[0][name]) == 200 for name in ("s", "b"))


def test_wide_samples_are_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded in bytes, too; whatever there is, a rule has a row."""
    monkeypatch.setattr("distop.spark_jobs.rules.gate.MAX_JOB_SAMPLES_BYTES", 5_000)
    rules = RuleSet(rules=parse_rules(["id < 0", "n < 0"], SCHEMA), shown=["s"], samples=100)
    found = checked(tmp_path, rules, *[table({"id": 1, "n": 1, "s": "é" * 200})] * 100)
    assert [one.count for one in found] == [100, 100]
    assert 5_000 < len(msgspec.json.encode(found)) < 7_000
    assert all(one.samples for one in found)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("", "empty"),
        ("id > ", "not an SQL expression"),
        ("id > 0; DROP TABLE rows", "not an SQL expression"),
        ("1) FROM rows WHERE (id = 1", "more than one"),
        ("id", "BIGINT"),
        ("1 = 1", "no column"),
        ("nope > 1", "nope"),
        ("rowid > 1 AND id > 0", "rowid"),
        ("rows.nope > 1 AND id > 0", "nope"),
        ("id IN (SELECT 1)", "a query"),
        ("EXISTS (FROM read_csv('/etc/passwd')) AND id > 0", "a query"),
        ("id > (FROM 'file.parquet')", "a query"),
        ("sum(id) > 0", "aggregate"),
        ("row_number() OVER () = id", "window"),
        ("COLUMNS(*) > 0", r"\*"),
        ("id > $1", "parameter"),
        ("random() > 0.5 AND id > 0", "not deterministic"),
        ("id > 0 AND sleep_ms(9) IS NULL", "not deterministic"),
        ("x" * 5000, "longer"),
        (RuleArgument(), "one of"),
        (RuleArgument(check="id > 0", unique="id"), "one of"),
        (RuleArgument(type="int"), "one of"),
        (RuleArgument(column="nope", type="int"), "no column 'nope'"),
        (RuleArgument(column="u", type="int"), "is not known"),
        (RuleArgument(column="id", type="decimal(5,9)"), "precision"),
        (RuleArgument(column="s", type="decimal(99,2)"), "precision"),
        (RuleArgument(not_null=["id", ""]), "no column"),
        (RuleArgument(unique=["id", "id"]), "twice"),
        (RuleArgument(unique=[]), "no column"),
        (RuleArgument(column="id", type="money"), "money"),
    ],
)
def test_a_text_that_is_no_rule_is_refused(rule: Any, said: str) -> None:
    """U3: before anything starts, naming the rule; nothing but the columns of the row can be reached."""
    with refused("checks.rules[1]", said):
        parse_rules(["id > 0", rule], SCHEMA, "checks.rules")


def test_columns_that_sql_does_not_tell_apart() -> None:
    """A table may have columns that differ in case only; conditions on them are refused, not guessed."""
    schema = parse_schema({"id": "long", "ID": "long", "n": "int"})
    with pytest.raises(InvalidArgument, match="differ only in case"):
        parse_rules("id > 0", schema)
    assert [rule.columns for rule in parse_rules(["n > 0", RuleArgument(not_null="ID")], schema)] == [
        ["n"],
        ["ID"],
    ]
    both = parse_rules([RuleArgument(not_null=["id", "ID"])], schema)
    for rules in (RuleSet(rules=both), RuleSet(rules=both[:1], shown=["ID"])):
        with pytest.raises(InvalidArgument, match="differ only in case"):
            distinguishable(rules)
    assert distinguishable(RuleSet(rules=both[:1], shown=["id", "n"])).columns == ["id", "n"]


def test_very_many_rules_are_refused_before_the_first_is_parsed() -> None:
    with pytest.raises(InvalidArgument, match="200,000 rules"):
        parse_rules(["id >"] * 200_000, SCHEMA)


def test_rules_have_different_names() -> None:
    with refused("rules", "two rules"):
        parse_rules(["id > 0", "id > 0"], SCHEMA)


def test_nothing_is_written_past_the_rules_of_a_table() -> None:
    """P12: writes of Spark's own interface are not checked: where rules must be kept they are refused."""
    layout = Layout(SCHEMA, UNPARTITIONED_PARTITION_SPEC).to_json()
    argument = {"write": new_write(time.time()), "files": "f.avro", "layout": layout}

    def plan(checks: dict[str, Any]) -> Plan:
        table = TableRecord(name="t", location="/t", options={"checks": checks} if checks else {})
        return make_plan(Write(), PlanRequest(table=table, head=None, watermarks={}, argument=argument))

    with pytest.raises(PreconditionFailed, match="must keep rules"):
        plan({"rules": "id > 0"})
    assert plan({"rules": "id > 0", "report_only": True}).argument["mode"] == plan({}).argument["mode"]


def test_a_violation_shows_the_columns_named_or_those_of_the_partitioning() -> None:
    """Those asked for, else those the table is partitioned by."""
    assert shown_columns(None, SCHEMA, [5]) == ["s"]
    assert shown_columns(["x", "x", "id"], SCHEMA) == ["x", "id"]
    with pytest.raises(InvalidArgument, match="no column 'y'"):
        shown_columns(["y"], SCHEMA)


def test_what_duckdb_itself_takes_counts_for_no_rule() -> None:
    """A fresh process limits itself to what it has loaded by then, and so much more."""
    script = (
        "import sys\n"
        "from distop.lake.rules import engine\n"
        "engine._limit = lambda: print('duckdb' in sys.modules)\n"
        "engine._open(':memory:', {}, [])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True"], done.stderr


def test_a_rule_takes_no_more_memory_than_it_may() -> None:
    """S1: whatever its functions make of a value; the job fails, and says which rule it was."""
    rules = RuleSet(rules=parse_rules(["id > 0", "length(repeat(s, id)) > id"], SCHEMA))
    with RowChecks(rules, Path) as checks:
        checks.check(table({"id": 1, "s": "xy"}))
        with pytest.raises(JobFailed, match=r"length.*[Mm]emory"):
            checks.check(table({"id": 1 << 30, "s": "xy"}))
        checks.check(table({"id": 1, "s": "xy"}))
        assert not checks.finish()


def test_a_rule_that_no_value_can_be_worked_out_for_is_named() -> None:
    """S1, U3: it is no defect of ours."""
    rules = RuleSet(rules=parse_rules("list_sum(range(id)) > id", SCHEMA))
    with RowChecks(rules, Path) as checks, pytest.raises(JobFailed, match="list_sum"):
        checks.check(table({"id": 100_000_000_000, "s": "xy"}))


def test_a_process_that_does_not_begin_says_nothing_about_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy: the job is tried again."""
    monkeypatch.setattr(engine, "_idle", Idle(0))
    monkeypatch.setattr(workers, "START_S", 0.0)
    monkeypatch.setattr(workers, "starved_s", lambda _: 0.0)
    with pytest.raises(Busy, match="has not begun"):
        engine.Confined(":memory:", {}, [], lambda: None).run("SELECT 1")


def test_a_rule_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: whether or not anybody cancels its job."""
    rules = RuleSet(rules=parse_rules("levenshtein(repeat(s, id), repeat(s || 'x', id)) >= 0", SCHEMA))
    monkeypatch.setattr(engine, "QUERY_S", 0.6)
    with RowChecks(rules, Path) as checks, pytest.raises(JobFailed, match=r"levenshtein.*longer than 1 s"):
        checks.check(table({"id": 1_000_000, "s": "ab"}))


def test_a_rule_ends_when_its_job_is_cancelled() -> None:
    """S1: in the middle of a query."""

    class CancelledError(Exception): ...

    def look() -> None:
        if asked:
            raise CancelledError
        asked.append(True)

    asked: list[bool] = []
    rule = "levenshtein(repeat(s, id), repeat(s || 'x', id)) > 0"
    rules = RuleSet(rules=parse_rules(rule, SCHEMA))
    with RowChecks(rules, Path, look) as checks, pytest.raises(CancelledError):
        checks.check(table({"id": 1_000_000, "s": "ab"}))


def test_rules_are_worked_out_where_no_secrets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: in the environment of a process that runs what callers write."""
    monkeypatch.setattr(engine, "_idle", Idle(1))
    monkeypatch.setenv("DISTOP_ETCD_PASSWORD", "canary")
    parse_rules("id > 0", SCHEMA)
    kept = engine._idle.take()
    assert kept is not None
    environment = Path(f"/proc/{kept.pid}/environ").read_bytes()
    kept.end()
    assert b"PATH=" in environment
    assert b"canary" not in environment


def test_large_blocks_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is counted twice or left out."""
    monkeypatch.setattr("distop.spark_jobs.rules.gate.BLOCK_BYTES", 100)
    blocks = values("id", *range(-5, 32))
    assert broken(Path(), "id >= 0", blocks) == {"check(id >= 0)": 5}
