"""Whether values fit a narrower type, as SQL conditions. Pure.

The rule is that of ingest: a value fits if it is the same value in the other type. Nothing is rounded or
truncated to make it fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable

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
                if (found := condition(column, source, wanted)) is not None:
                    return f"({column} IS NOT NULL AND ({found}))"
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
    found = _DECIMAL.fullmatch(target)
    if found is None:
        return None
    precision, scale = int(found[1]), int(found[2])
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
    found = _LENGTH.fullmatch(target)
    if found is None or target.startswith("binary") != isinstance(source, BinaryType):
        return None
    measure = "octet_length" if isinstance(source, BinaryType) else "length"
    return f"{measure}({column}) > {found[1]}"


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
