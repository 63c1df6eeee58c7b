"""Checks rules against the columns of a table, when it is made or an operation starts; whether values fit a
narrower type becomes a condition in SQL.

The rule for types is that of ingest: a value fits if it is the same value in the other type. Nothing is
rounded or truncated to make it fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from distop.errors import InvalidArgument, PreconditionFailed
from distop.lake.layout.model import Layout
from distop.lake.rows import new_layout
from distop.lake.rules.engine import BadExpression, Expression, SqlEngine, quoted
from distop.lake.rules.model import MAX_SAMPLES, ChecksArgument, RawRules, Rule, RuleArgument, RuleSet
from distop.metastore.records.record import convert
from distop.metastore.records.table import TableRecord
from distop.operations.arguments import invalid

INTEGERS = {"byte": 8, "tinyint": 8, "short": 16, "smallint": 16, "int": 32, "long": 64, "bigint": 64}
"""Bits of each."""
_SQL_INTEGERS = {8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_LENGTH = re.compile(r"(?:string|varchar|binary)\(\s*(\d{1,9})\s*\)")

KNOWN = ", ".join(
    [*INTEGERS, "float", "double", "decimal(p,s)", "date", "timestamp", "string(n)", "binary(n)"]
)


class NoSuchRule(ValueError):
    """This pair of types is not supported. The text is the reason."""


def misfit(column: str, source: IcebergType, target: str) -> str:
    """A condition that is true for values that do not fit; never for NULL.

    Parameters
    ----------
    column:
        As an SQL identifier.
    source:
        The type of the column.
    target:
        Such as ``smallint``, ``decimal(9,2)``, ``string(3)`` or ``date``.
    """
    wanted = re.sub(r"\s+", " ", target.strip().lower())
    for kinds, conditions in _CONDITIONS:
        if isinstance(source, kinds):
            for condition in conditions:
                if (failing := condition(column, source, wanted)) is not None:
                    return f"({column} IS NOT NULL AND ({failing}))"
    raise NoSuchRule(
        f"whether a value of type {source} fits {target!r} is not known; known types are {KNOWN}"
    )


def _integer(column: str, source: IcebergType, target: str) -> str | None:
    if target not in INTEGERS:
        return None
    bound = 1 << (INTEGERS[target] - 1)
    if isinstance(source, FloatType | DoubleType):
        # The bounds are powers of two: exact as doubles. NaN and infinities are beyond any bound.
        within = f"{column} >= -{bound}.0::DOUBLE AND {column} < {bound}.0::DOUBLE"
        return f"NOT ({within} AND trunc({column}) = {column})"
    whole = f"trunc({column}) <> {column} OR " if isinstance(source, DecimalType) else ""
    value = f"CAST(trunc({column}) AS HUGEINT)" if isinstance(source, DecimalType) else column
    return f"{whole}{value} < -{bound}::HUGEINT OR {value} > {bound - 1}::HUGEINT"


def _digits(target: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type."""
    match = _DECIMAL.fullmatch(target)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    if not (1 <= precision <= 38 and scale <= precision):
        raise NoSuchRule(f"{target} needs 1 <= precision <= 38 and scale <= precision")
    return precision, scale


def _decimal(column: str, source: IcebergType, target: str) -> str | None:
    if (digits := _digits(target)) is None:
        return None
    precision, scale = digits
    if isinstance(source, FloatType | DoubleType):
        tried = f"TRY_CAST({column} AS DECIMAL({precision},{scale}))"
        return f"{tried} IS NULL OR CAST({tried} AS DOUBLE) <> CAST({column} AS DOUBLE)"
    value = f"CAST(trunc({column}) AS HUGEINT)" if isinstance(source, DecimalType) else f"{column}::HUGEINT"
    limit = 10 ** (precision - scale)
    beyond = f"{value} <= -{limit}::HUGEINT OR {value} >= {limit}::HUGEINT"
    if isinstance(source, DecimalType) and source.scale > scale:
        return f"{beyond} OR round({column}, {scale}) <> {column}"
    return beyond


def _float(column: str, source: IcebergType, target: str) -> str | None:
    if target != "float" or isinstance(source, FloatType):
        return None
    tried = f"TRY_CAST({column} AS FLOAT)"
    if isinstance(source, DoubleType):
        return f"{tried} IS NULL OR CAST({tried} AS DOUBLE) <> {column}"
    return f"{tried} IS NULL OR TRY_CAST({tried} AS HUGEINT) IS DISTINCT FROM {column}::HUGEINT"


def _date(column: str, source: IcebergType, target: str) -> str | None:
    return f"date_trunc('day', {column}) <> {column}" if target == "date" else None


def _length(column: str, source: IcebergType, target: str) -> str | None:
    match = _LENGTH.fullmatch(target)
    if match is None or target.startswith("binary") != isinstance(source, BinaryType):
        return None
    measure = "octet_length" if isinstance(source, BinaryType) else "length"
    return f"{measure}({column}) > {match[1]}"


def _text(column: str, source: IcebergType, target: str) -> str | None:
    """For text, whether it can be read as a value; more strictly than a cast, which rounds and trims."""
    number = r"[+-]?[0-9]+"
    if target in INTEGERS:
        return _unreadable(column, number, _SQL_INTEGERS[INTEGERS[target]])
    if (digits := _digits(target)) is not None:
        precision, scale = digits
        fraction = rf"(\.[0-9]{{0,{scale}}}0*)?"
        return _unreadable(column, number + fraction, f"DECIMAL({precision},{scale})")
    if target in ("float", "double"):
        return _unreadable(column, r"\S+", target.upper())
    if target == "date":
        return _unreadable(column, r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "DATE")
    if target in ("timestamp", "timestamptz"):
        return _unreadable(column, r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T]\S.*", target.upper())
    return None


def _unreadable(column: str, pattern: str, kind: str) -> str:
    return f"NOT regexp_full_match({column}, '{pattern}') OR TRY_CAST({column} AS {kind}) IS NULL"


_Condition = Callable[[str, IcebergType, str], str | None]
_CONDITIONS: list[tuple[tuple[type[IcebergType], ...], tuple[_Condition, ...]]] = [
    ((IntegerType, LongType), (_integer, _decimal, _float)),
    ((FloatType, DoubleType), (_integer, _decimal, _float)),
    ((DecimalType,), (_integer, _decimal)),
    ((TimestampType, TimestamptzType), (_date,)),
    ((StringType,), (_length, _text)),
    ((BinaryType,), (_length,)),
]


MAX_RULES = 64
MAX_NAME_CHARACTERS = 120
MAX_SHOWN = 32
"""Most columns shown of sample rows."""

HINT = 'write for example [{"not_null": "id"}, {"check": "fare > 0"}, {"column": "n", "type": "smallint"}]'


def parse_rules(raw: RawRules, schema: Schema, field: str = "rules") -> list[Rule]:
    """Check rules against the columns of a table.

    Raises
    ------
    InvalidArgument
        One of them is invalid, does not parse, or names unknown columns.
    """
    given = raw if isinstance(raw, list) else [raw]
    if not given:
        raise _invalid(field, "there is no rule")
    _check_count(field, len(given))
    rules: list[Rule] = []
    with SqlEngine() as engine:
        columns = _Columns(engine, schema)
        for position, text in enumerate(given):
            where = f"{field}[{position}]"
            try:
                rules += columns.rules(RuleArgument(check=text) if isinstance(text, str) else text)
            except (BadExpression, NoSuchRule, _NoRule) as error:
                raise _invalid(where, f"{where}: {error}") from None
    _check_count(field, len(rules))
    names = [rule.name for rule in rules]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _invalid(field, f"two rules have the name {twice!r}", "give each a name of its own")
    return rules


def _check_count(field: str, count: int) -> None:
    if count > MAX_RULES:
        raise _invalid(field, f"there are {count:,} rules, at most {MAX_RULES} are checked at a time")


def distinguishable(rules: RuleSet, field: str = "rules") -> RuleSet:
    """The same rules, if SQL can distinguish their columns, and those that are shown.

    Raises :class:`~distop.errors.InvalidArgument`.
    """
    folded: dict[str, str] = {}
    for name in rules.columns:
        if (twin := folded.setdefault(name.casefold(), name)) != name:
            raise _invalid(
                field,
                f"columns {twin!r} and {name!r} differ only in case, which SQL ignores",
                "check one of them at a time, and name other columns in show",
            )
    return rules


def shown_columns(
    names: Sequence[str] | None, schema: Schema, sources: Iterable[int] = (), *, field: str = "show"
) -> list[str]:
    """Columns to show of sample rows: the requested ones, else those that identify a row and its partition.

    Parameters
    ----------
    sources:
        Ids of the columns the table is partitioned by.
    """
    known = [column.name for column in schema.columns]
    if names is None:
        ids = {*schema.identifier_field_ids, *sources}
        return [column.name for column in schema.columns if column.field_id in ids][:MAX_SHOWN]
    for name in names:
        if name not in known:
            raise _invalid(field, f"there is no column {name!r}; the columns are {', '.join(known)}")
    if len(names) > MAX_SHOWN:
        raise _invalid(field, f"at most {MAX_SHOWN} columns are shown")
    return list(dict.fromkeys(names))


class _NoRule(ValueError):
    """A rule is invalid; the text is the reason."""


class _Columns:
    """The columns of a table, for rules."""

    def __init__(self, engine: SqlEngine, schema: Schema) -> None:
        self._engine = engine
        self._types = {column.name: column.field_type for column in schema.columns}
        self._arrow = schema_to_pyarrow(schema, include_field_ids=False)

    def rules(self, given: RuleArgument) -> list[Rule]:
        """The rules of one entry."""
        kinds = [kind for kind in ("not_null", "check", "type", "unique") if getattr(given, kind) is not None]
        if len(kinds) != 1 or (given.column is not None) != (kinds == ["type"]):
            raise _NoRule("a rule has one of not_null, check, unique, or type together with column")
        match kinds[0]:
            case "not_null":
                return self._not_null(given)
            case "check":
                return [self._check(str(given.check), given.name)]
            case "type":
                return [self._type(str(given.column), str(given.type), given.name)]
        return [self._unique(_listed(given.unique), given.name)]

    def _not_null(self, given: RuleArgument) -> list[Rule]:
        names = _listed(given.not_null)
        rules = []
        for column in names:
            self._known(column)
            label = given.name if given.name is None or len(names) == 1 else f"{given.name}: {column}"
            name = _name(label, f"not_null({column})")
            rules.append(Rule(name=name, violated=f"{quoted(column)} IS NULL", columns=[column]))
        return rules

    def _check(self, text: str, name: str | None) -> Rule:
        expression = self._engine.parse(text)
        columns = self._referred(expression)
        if not columns:
            missing = (
                f"there is no column {min(expression.names)!r}" if expression.names else "it names no column"
            )
            raise _NoRule(f"{missing}; the columns are {', '.join(self._types)}")
        # Bind only these, as jobs will: other names do not exist.
        self._engine.check_condition(expression, self._arrow.empty_table().select(columns))
        return Rule(
            name=_name(name, f"check({' '.join(text.split())})"),
            violated=f"NOT ({expression.sql})",
            columns=columns,
        )

    def _type(self, column: str, target: str, name: str | None) -> Rule:
        violated = misfit(quoted(column), self._known(column), target)
        return Rule(name=_name(name, f"type({column} {target})"), violated=violated, columns=[column])

    def _unique(self, columns: list[str], name: str | None) -> Rule:
        for column in columns:
            if self._known(column).is_primitive is False:
                raise _NoRule(f"column {column!r} is nested: its values cannot be compared")
        if len({column.casefold() for column in columns}) != len(columns):
            raise _NoRule("a column is named twice")
        return Rule(name=_name(name, f"unique({', '.join(columns)})"), columns=columns, kind="unique")

    def _known(self, column: str) -> Any:
        if column not in self._types:
            raise _NoRule(f"there is no column {column!r}; the columns are {', '.join(self._types)}")
        return self._types[column]

    def _referred(self, expression: Expression) -> list[str]:
        """Columns in an expression; SQL does not distinguish upper and lower case."""
        names = {name.casefold() for name in expression.names}
        # A name that is not a column is refused when the expression is bound: it may be a lambda parameter.
        referred = [column for column in self._types if column.casefold() in names]
        folded = [column.casefold() for column in referred]
        if len(set(folded)) != len(folded):
            raise _NoRule(f"columns {', '.join(referred)} differ only in case, which SQL ignores")
        return referred


def _listed(names: str | list[str] | None) -> list[str]:
    listed = [names] if isinstance(names, str) else list(names or ())
    if not listed or not all(listed):
        raise _NoRule("it names no column")
    return listed


def _name(given: str | None, default: str) -> str:
    name = (given or default).strip()
    return name if len(name) <= MAX_NAME_CHARACTERS else name[: MAX_NAME_CHARACTERS - 1] + "…"


def _invalid(field: str, message: str, hint: str = HINT) -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": field})


OPTION = "checks"
"""Option of a table, and field of an argument."""


def rules_of(
    table_options: Mapping[str, Any], argument: ChecksArgument | None, layout: Layout
) -> RuleSet | None:
    """The rules for an operation: those of its table, which always apply, and its own.

    Raises :class:`~distop.errors.InvalidArgument` if they do not fit the table's columns.
    """
    given = [rules for rules in (_of_table(table_options), argument) if rules is not None]
    if not given:
        return None
    field = f"{OPTION}.rules"
    raw = [rules.rules if isinstance(rules.rules, list) else [rules.rules] for rules in given]
    parsed = parse_rules([*chain.from_iterable(raw)], layout.schema, field)
    for rule in parsed:
        if rule.kind == "unique":
            raise invalid(
                field,
                f"rule {rule.name!r} compares rows of several jobs, and no job sees all of them",
                "ingest into a branch, and validate that before it is published: see docs/validation.md",
            )
    samples = max(rules.samples for rules in given)
    if not 0 <= samples <= MAX_SAMPLES:
        raise invalid(f"{OPTION}.samples", f"samples must lie between 0 and {MAX_SAMPLES}")
    asked = [name for rules in given for name in rules.show or ()]
    sources = [term.source_id for term in layout.spec.fields]
    rules = RuleSet(
        rules=parsed,
        shown=shown_columns(asked or None, layout.schema, sources, field=f"{OPTION}.show"),
        samples=samples,
        report_only=all(rules.report_only for rules in given),
    )
    return distinguishable(rules, field)


def check_option(table: TableRecord, schema: Schema | None) -> None:
    """Refuse rules of a table that are invalid, or do not fit its columns if those are known.

    Raises :class:`~distop.errors.InvalidArgument`.
    """
    _of_table(table.options)
    if schema is not None:
        rules_of(table.options, None, new_layout(table, schema))


def refuse_unchecked(table: str, options: Mapping[str, Any]) -> None:
    """Refuse a kind of write that checks no rules, if the table has some.

    Raises :class:`~distop.errors.PreconditionFailed`.
    """
    rules = _of_table(options)
    if rules is not None and not rules.report_only:
        raise PreconditionFailed(
            f"rows of table {table!r} must keep rules, which this kind of write does not check",
            hint="ingest them: files with ingest, a DataFrame with ingest_dataframe",
        )


def _of_table(options: Mapping[str, Any]) -> ChecksArgument | None:
    raw = options.get(OPTION)
    if raw is None:
        return None
    try:
        return convert(raw, ChecksArgument)
    except msgspec.ValidationError as error:
        raise InvalidArgument(
            f"the table's option {OPTION}: {error}", details={"field": f"options.{OPTION}"}
        ) from None
