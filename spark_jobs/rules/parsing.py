"""Checks rules against the columns of a table, when an operation starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from distop.errors import InvalidArgument
from distop.spark_jobs.rules.engine import BadExpression, Expression, SqlEngine, quoted
from distop.spark_jobs.rules.model import RawRules, Rule, RuleArgument, RuleSet
from distop.spark_jobs.rules.types import NoSuchRule, misfit

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
        for position, one in enumerate(given):
            where = f"{field}[{position}]"
            try:
                rules += columns.rules(RuleArgument(check=one) if isinstance(one, str) else one)
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


def told_apart(rules: RuleSet, field: str = "rules") -> RuleSet:
    """The same rules, if SQL can tell their columns apart, and those that are shown.

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
        found = [column for column in self._types if column.casefold() in names]
        folded = [column.casefold() for column in found]
        if len(set(folded)) != len(folded):
            raise _NoRule(f"columns {', '.join(found)} differ only in case, which SQL ignores")
        return found


def _listed(names: str | list[str] | None) -> list[str]:
    found = [names] if isinstance(names, str) else list(names or ())
    if not found or not all(found):
        raise _NoRule("it names no column")
    return found


def _name(given: str | None, default: str) -> str:
    name = (given or default).strip()
    return name if len(name) <= MAX_NAME_CHARACTERS else name[: MAX_NAME_CHARACTERS - 1] + "…"


def _invalid(field: str, message: str, hint: str = HINT) -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": field})
