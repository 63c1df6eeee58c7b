"""A predicate that is fitted to the columns of a schema, and evaluated on rows in memory: SQL's three-valued
logic, without NOT.

Arrow's own comparisons know no order of NaN, and its lists distinguish both zeros. So columns are brought
into a plain form first, and NaN is compared here.

A comparison with a value that its column cannot hold is exact: ``id >= 2.5`` on integers is ``id >= 3``,
``id = 1.5`` is false (and unknown for NULL). What has no exact meaning is refused, by column and value. NaN
equals NaN and is greater than all other numbers, negative zero equals zero, texts are in the order of their
UTF-8 bytes; a quoted value must be one of the column's type.
"""

from __future__ import annotations

import math
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import cached_property, reduce
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from distop.lake.predicates import syntax
from distop.operations.arguments import invalid

Plain: TypeAlias = bool | int | float | Decimal | str | bytes
"""A value in the form in which it is compared: dates are days, times and timestamps microseconds since 1970
(UTC), UUIDs and binary values bytes."""

Order: TypeAlias = str
"""How two values are compared: ``<``, ``<=``, ``>``, ``>=``, ``=`` or ``!=``."""

_OPPOSITE: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}
_EXACT = Context(prec=1000)


@dataclass(frozen=True, slots=True)
class BoundColumn:
    """A column of a primitive type; ``path`` leads through structs to it."""

    path: tuple[str, ...]
    id: int
    kind: iceberg.PrimitiveType

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def is_float(self) -> bool:
        return isinstance(self.kind, iceberg.FloatType | iceberg.DoubleType)


@dataclass(frozen=True, slots=True)
class Always:
    """A condition that is true, or false, for all rows."""

    value: bool


@dataclass(frozen=True, slots=True)
class Known:
    """The same for all rows with a value, and unknown for NULL."""

    column: BoundColumn
    value: bool

    def holds(self, value: Plain) -> bool:
        return self.value


@dataclass(frozen=True, slots=True)
class BoundComparison:
    """A comparison with a value that the column can hold."""

    column: BoundColumn
    op: Order
    value: Any

    def holds(self, value: Any) -> bool:
        """For a value that is not NULL."""
        match self.op:
            case "<":
                return before(value, self.value)
            case "<=":
                return not before(self.value, value)
            case ">":
                return before(self.value, value)
            case ">=":
                return not before(value, self.value)
            case "=":
                return same(value, self.value)
        return not same(value, self.value)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether the value is one of a list."""

    column: BoundColumn
    values: tuple[Any, ...]
    """Sorted, and without NaN."""
    nan: bool = False
    """Whether NaN is in the list."""
    negated: bool = False

    def holds(self, value: Any) -> bool:
        """For a value that is not NULL."""
        matches = self.nan if value != value else bool(self.within(value, value))
        return matches != self.negated

    def within(self, least: Any, greatest: Any) -> tuple[Any, ...]:
        """Those of the values that lie between two, both included; ``None``: no bound."""
        first = 0 if least is None else bisect_left(self.values, least)
        return self.values[first : None if greatest is None else bisect_right(self.values, greatest)]


@dataclass(frozen=True, slots=True)
class Like:
    """Whether a text matches a pattern of ``LIKE``."""

    column: BoundColumn
    regex: str
    """For RE2, whose time is linear in the text: with some patterns that of :mod:`re` has no end."""
    prefix: str
    """How all matching texts begin."""
    is_prefix: bool
    """Whether all texts that begin so match."""
    negated: bool = False

    def holds(self, value: Any) -> bool:
        """For a value that is not NULL."""
        matches = pc.match_substring_regex(pa.scalar(value, pa.large_string()), self.regex)
        return bool(matches.as_py()) != self.negated


@dataclass(frozen=True, slots=True)
class Null:
    """Whether there is no value; never unknown."""

    column: BoundColumn
    negated: bool = False


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


Leaf: TypeAlias = Known | BoundComparison | OneOf | Like
Node: TypeAlias = Always | Leaf | Null | And | Or


def before(value: Any, other: Any) -> bool:
    """Whether a value is less than another one of its type; nothing is greater than NaN."""
    return bool(value < other) or (other != other and value == value)


def same(value: Any, other: Any) -> bool:
    """Whether two values of a type are equal; NaN equals NaN."""
    return bool(value == other) or (value != value and other != other)


@dataclass(frozen=True)
class Predicate:
    """A condition on the rows of a schema."""

    node: Node

    @cached_property
    def columns(self) -> list[str]:
        """The top-level columns that it reads, sorted."""
        names: set[str] = set()
        waiting: list[Node] = [self.node]
        while waiting:
            node = waiting.pop()
            match node:
                case And() | Or():
                    waiting += node.parts
                case Always():
                    pass
                case _:
                    names.add(node.column.path[0])
        return sorted(names)


ALL = Predicate(Always(True))


def bind(tree: syntax.Tree, schema: Schema, field: str = "filter") -> Predicate:
    """A predicate over the rows of a schema.

    Raises
    ------
    InvalidArgument
        It names a column that does not exist or is nested, or compares one with a value that cannot be one of
        its type. Names the ``field`` of the argument, the column and the value.
    """
    return Predicate(_Binding(schema, field).node(tree, negated=False))


def predicate_of(text: str, schema: Schema, field: str = "filter") -> Predicate:
    """A text as a predicate; raises as :func:`~.syntax.parse` and :func:`bind`."""
    return bind(syntax.parse(text, field), schema, field)


def within(schema: Schema, bounds: Mapping[str, tuple[Any, Any]]) -> Predicate:
    """Rows whose columns lie between values, both included; values as Arrow gives them to Python."""
    parts: list[Node] = []
    for name, (least, greatest) in bounds.items():
        column = column_of(schema, (name,))
        assert column is not None
        parts.append(BoundComparison(column, ">=", plain(least, column.kind)))
        parts.append(BoundComparison(column, "<=", plain(greatest, column.kind)))
    return Predicate(And(tuple(parts)))


def column_of(schema: Schema, path: tuple[str, ...]) -> BoundColumn | None:
    """A column by the names that lead to it; ``None`` if there is none, or it is not of a primitive type."""
    for names in (path, (".".join(path),)):  # a name may contain dots
        field = _field_of(schema, names)
        if field is not None and isinstance(field.field_type, iceberg.PrimitiveType):
            return BoundColumn(names, field.field_id, field.field_type)
    return None


def _field_of(schema: Schema, path: tuple[str, ...]) -> iceberg.NestedField | None:
    """A field at the top level, or below structs."""
    fields: Iterable[iceberg.NestedField] = schema.fields
    field = None
    for name in path:
        field = next((field for field in fields if field.name == name), None)
        if field is None:
            return None
        fields = field.field_type.fields if isinstance(field.field_type, iceberg.StructType) else ()
    return field


class _Binding:
    """Binds the parts of one tree. NOT is carried inwards: so each leaf is what selects rows."""

    def __init__(self, schema: Schema, field: str) -> None:
        self._schema, self._field = schema, field

    def node(self, tree: syntax.Tree, *, negated: bool) -> Node:
        match tree:
            case syntax.Constant(value):
                return Always(value != negated)
            case syntax.Negation(part):
                return self.node(part, negated=not negated)
            case syntax.Conjunction(parts) | syntax.Disjunction(parts):
                bound = tuple(self.node(part, negated=negated) for part in parts)
                return And(bound) if isinstance(tree, syntax.Conjunction) != negated else Or(bound)
        column = self._column(tree.column)
        match tree:
            case syntax.NullTest():
                return Null(column, negated)
            case syntax.NanTest():
                nan = BoundComparison(column, "!=" if negated else "=", math.nan)
                return nan if column.is_float else Known(column, negated)
            case syntax.Comparison(_, op, literal):
                return self._compared(column, _OPPOSITE[op] if negated else op, literal)
            case syntax.Membership(_, values):
                return self._one_of(column, values, negated)
        return self._like(column, tree.pattern, negated)

    def _column(self, path: syntax.Name) -> BoundColumn:
        column = column_of(self._schema, path)
        if column is not None:
            return column
        name = ".".join(path)
        if _field_of(self._schema, path) is not None:
            raise self._misfit(name, f"column {name!r} is nested: its values cannot be compared")
        known = ", ".join(field.name for field in self._schema.fields)
        raise self._misfit(name, f"there is no column {name!r}; the columns are {known}")

    def _compared(self, column: BoundColumn, op: Order, literal: syntax.Value) -> Node:
        value = self._value(column, literal)
        if not isinstance(value, _Between):
            return BoundComparison(column, op, value)
        if op in ("=", "!="):
            return Known(column, op == "!=")
        # No value of the column lies between its neighbours.
        op, bound = (">=", value.above) if op in (">", ">=") else ("<=", value.below)
        return Known(column, False) if bound is None else BoundComparison(column, op, bound)

    def _one_of(self, column: BoundColumn, literals: Iterable[syntax.Value], negated: bool) -> Node:
        values = [self._value(column, literal) for literal in literals]
        held = [value for value in values if not isinstance(value, _Between)]
        nan = any(value != value for value in held)
        return OneOf(column, tuple(sorted({value for value in held if value == value})), nan, negated)

    def _value(self, column: BoundColumn, literal: syntax.Value) -> Any:
        """A value that the column can hold, or the gap in which the literal lies."""
        kind = column.kind
        try:
            if isinstance(literal, Decimal):
                return _of_number(literal, kind)
            if isinstance(literal, bool):
                if isinstance(kind, iceberg.BooleanType):
                    return literal
                raise ValueError("its values are neither true nor false")
            return _of_text(literal, kind)
        except ValueError as error:
            shown = syntax.shortened(repr(literal) if isinstance(literal, str) else str(literal).lower())
            raise self._misfit(
                column.name, f"column {column.name!r} is {kind}, and cannot be compared with {shown}: {error}"
            ) from None

    def _like(self, column: BoundColumn, pattern: str, negated: bool) -> Node:
        shown = syntax.shortened(repr(pattern))
        if not isinstance(column.kind, iceberg.StringType):
            raise self._misfit(
                column.name, f"column {column.name!r} is {column.kind}, and only texts can be like {shown}"
            )
        match = re.fullmatch(r"(?:[^\\]|\\[%_\\])*", pattern, re.DOTALL)
        if match is None:
            raise self._misfit(
                column.name,
                f"in like {shown} a backslash comes before another character than % and _",
                r"a backslash itself is \\",
            )
        tokens = re.findall(r"\\.|.", pattern, re.DOTALL)
        wild = next((at for at, token in enumerate(tokens) if token in ("%", "_")), len(tokens))
        prefix = "".join(token[-1] for token in tokens[:wild])
        if wild == len(tokens):
            return BoundComparison(column, "!=" if negated else "=", prefix)
        regex = f"(?s)^{''.join(_WILD.get(token) or _escaped(token[-1]) for token in tokens)}$"
        try:
            pc.match_substring_regex(pa.scalar(""), regex)
        except pa.ArrowInvalid:
            raise self._misfit(column.name, f"the pattern {shown} is too long") from None
        return Like(column, regex, prefix, set(tokens[wild:]) == {"%"}, negated)

    def _misfit(self, column: str, why: str, hint: str = "") -> Exception:
        message = f"the {self._field} does not fit the columns: {why}"
        return invalid(self._field, message, hint, column=column)


_WILD = {"%": ".*", "_": "."}


def _escaped(character: str) -> str:
    """RE2 takes no backslash before letters, digits and ``_``."""
    is_sign = character.isascii() and not character.isalnum() and character != "_" and character > " "
    return "\\" + character if is_sign else character


@dataclass(frozen=True, slots=True)
class _Between:
    """The gap between two neighbouring values of a type; ``None``: beyond all of them."""

    below: Any
    above: Any


# -- literals ------------------------------------------------------------------------------------------


def _of_number(number: Decimal, kind: iceberg.IcebergType) -> Any:
    """A number as a value of a type. Raises ``ValueError`` if they cannot be compared."""
    match kind:
        case iceberg.IntegerType() | iceberg.LongType():
            value = _on_grid(number, 0, Decimal(kind.min), Decimal(kind.max))
            if isinstance(value, _Between):
                return _Between(
                    *(None if bound is None else int(bound) for bound in (value.below, value.above))
                )
            return int(value)
        case iceberg.DecimalType():
            most = Decimal(10**kind.precision - 1).scaleb(-kind.scale, _EXACT)
            return _on_grid(number, kind.scale, most.copy_negate(), most)
        case iceberg.FloatType():
            return _nearest(number, _float32)
        case iceberg.DoubleType():
            return _nearest(number, float)
    raise ValueError("its values are no numbers; write the value in quotes")


def _on_grid(number: Decimal, scale: int, least: Decimal, most: Decimal) -> Any:
    """A number with ``scale`` digits after the point, or the gap that it lies in."""
    if number < least:
        return _Between(None, least)
    if number > most:
        return _Between(most, None)
    unit = Decimal(1).scaleb(-scale)
    below = number.quantize(unit, ROUND_FLOOR, _EXACT)
    if below == number:
        return below
    return _Between(below, number.quantize(unit, ROUND_CEILING, _EXACT))


def _nearest(number: Decimal, of: Callable[[Decimal], float]) -> Any:
    value = of(number)
    if math.isinf(value):
        return _Between(-math.inf, -_largest(of)) if value < 0 else _Between(_largest(of), math.inf)
    return value + 0.0  # of both zeros the positive one


def _float32(number: Decimal | float) -> float:
    try:
        value: float = struct.unpack("<f", struct.pack("<f", float(number)))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return value


def _largest(of: Callable[[Decimal], float]) -> float:
    return 3.4028234663852886e38 if of is _float32 else 1.7976931348623157e308


_NUMBER = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?\s*")
_SPECIAL = re.compile(r"\s*([+-]?)(nan|inf|infinity)\s*", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_TIME = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?")
_TIMESTAMP = re.compile(
    rf"(?P<date>{_DATE.pattern})(?:[T ](?P<time>{_TIME.pattern}) ?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?)?"
)
_BLOB = re.compile(r"(?:[\x00-\x5b\x5d-\x7f]|\\x[0-9a-fA-F]{2})*")


def _of_text(text: str, kind: iceberg.IcebergType) -> Any:
    """A quoted value as one of a type. Raises ``ValueError`` if it is none, or not exactly."""
    match kind:
        case iceberg.StringType():
            return text
        case iceberg.BooleanType():
            if text.lower() not in ("true", "false"):
                raise ValueError("write true or false")
            return text.lower() == "true"
        case (
            iceberg.IntegerType()
            | iceberg.LongType()
            | iceberg.DecimalType()
            | iceberg.FloatType()
            | iceberg.DoubleType()
        ):
            return _number_of_text(text, kind)
        case iceberg.DateType():
            return _days(text)
        case iceberg.TimeType():
            return _micros_of_day(text)
        case iceberg.TimestampType() | iceberg.TimestamptzType():
            micros, offset = _micros(text)
            if offset and isinstance(kind, iceberg.TimestampType):
                raise ValueError("its values have no zone; write the time without one, or in UTC with Z")
            return micros - offset
        case iceberg.UUIDType():
            try:
                return UUID(text).bytes
            except ValueError:
                raise ValueError("it is no UUID") from None
        case iceberg.BinaryType() | iceberg.FixedType():
            if not _BLOB.fullmatch(text):
                raise ValueError(r"write each byte that is no ASCII character, and \, as \xHH")
            return re.sub(rb"\\x(..)", lambda match: bytes.fromhex(match[1].decode()), text.encode())
    raise ValueError("values of this type cannot be compared")


def _number_of_text(text: str, kind: iceberg.IcebergType) -> Any:
    special = _SPECIAL.fullmatch(text)
    if special and isinstance(kind, iceberg.FloatType | iceberg.DoubleType):
        return float(text)
    if not _NUMBER.fullmatch(text):
        raise ValueError("it is no number")
    value = _of_number(Decimal(text.strip()), kind)
    if isinstance(value, _Between):
        raise ValueError("no value of this type equals it; without quotes it is compared as a number")
    return value


def _days(text: str) -> int:
    if not _DATE.fullmatch(text):
        raise ValueError("write a date as '2024-01-31'")
    return date.fromisoformat(text).toordinal() - EPOCH


def _micros_of_day(text: str) -> int:
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError("write a time as '23:59:59' or '23:59:59.999999'")
    hours, minutes, seconds = (int(part or 0) for part in match.group(1, 2, 3))
    digits = (match[4] or "").ljust(6, "0")
    if digits[6:].strip("0"):
        raise ValueError("it has more than six digits of a second")
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError("there is no such time")
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(digits[:6])


def _micros(text: str) -> tuple[int, int]:
    """A timestamp as it is written, and its zone's offset from UTC; without a zone it is in UTC."""
    match = _TIMESTAMP.fullmatch(text)
    if not match:
        raise ValueError("write a timestamp as '2024-01-31T23:59:59' or '2024-01-31T23:59:59.999999Z'")
    micros = _days(match["date"]) * DAY + (_micros_of_day(match["time"]) if match["time"] else 0)
    zone = match["zone"]
    if zone is None or zone in "Zz":
        return micros, 0
    hours, minutes = int(zone[1:3]), int(zone[-2:]) if len(zone) > 3 else 0
    offset = (hours * 60 + minutes) * 60_000_000
    return micros, offset if zone[0] == "+" else -offset


# -- values of tables ----------------------------------------------------------------------------------

EPOCH = date(1970, 1, 1).toordinal()
DAY = 86_400_000_000
"""A day in microseconds."""
_MICROSECOND = timedelta(microseconds=1)


def plain(value: Any, kind: iceberg.IcebergType) -> Any:
    """A value of a column as Arrow, pyiceberg or Parquet's statistics give it, in the form of
    :data:`Plain`."""
    match value:
        case datetime():
            return (value.replace(tzinfo=None) - (value.utcoffset() or timedelta()) - _UNIX) // _MICROSECOND
        case date():
            return value.toordinal() - EPOCH
        case time():
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return seconds * 1_000_000 + value.microsecond
        case UUID():
            return value.bytes
        case str() if isinstance(kind, iceberg.UUIDType):
            return UUID(value).bytes
        case bytearray() | memoryview():
            return bytes(value)
    return value


_UNIX = datetime(1970, 1, 1)  # noqa: DTZ001 - of UTC, as all others here

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def truth(predicate: Predicate, rows: pa.RecordBatch | pa.Table) -> pa.ChunkedArray:
    """Whether a predicate is true of each row: ``true``, ``false``, or NULL where SQL's answer is unknown."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return pa.chunked_array([_truth(predicate.node, batch) for batch in batches], pa.bool_())


def chosen(predicate: Predicate, rows: Rows) -> Rows:
    """The rows for which a predicate is true."""
    return _kept(rows, truth(predicate, rows))


def others(predicate: Predicate, rows: Rows) -> Rows:
    """The other rows: those for which it is false or unknown."""
    return _kept(rows, pc.invert(pc.fill_null(truth(predicate, rows), False)))


def at_least(values: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether each value is greater than or equal to the other one, of the same type; NULL is the least."""
    mask = pc.greater_equal(values, others)
    if pa.types.is_floating(values.type):
        mask = pc.or_(mask, pc.is_nan(values))
    return pc.or_(pc.fill_null(mask, False), pc.is_null(others))


def _kept(rows: Any, mask: pa.ChunkedArray) -> Any:
    return rows.filter(mask if isinstance(rows, pa.Table) else mask.chunk(0))


def _truth(node: Node, rows: pa.RecordBatch) -> pa.Array:
    match node:
        case Always(value):
            return pa.repeat(pa.scalar(value), rows.num_rows)
        case And(parts):
            return reduce(pc.and_kleene, (_truth(part, rows) for part in parts))
        case Or(parts):
            return reduce(pc.or_kleene, (_truth(part, rows) for part in parts))
    values = _values(node.column, rows)
    if isinstance(node, Null):
        return pc.is_valid(values) if node.negated else pc.is_null(values)
    # Not every function of Arrow leaves NULL unknown.
    return pc.if_else(pc.is_valid(values), _leaf(node, values), pa.scalar(None, pa.bool_()))


def _leaf(leaf: Leaf, values: pa.Array) -> pa.Array:
    match leaf:
        case Known(_, value):
            return pa.repeat(pa.scalar(value), len(values))
        case BoundComparison():
            return _compared(leaf, values)
        case OneOf():
            mask = pc.is_in(values, pa.array([_scalar(value) for value in leaf.values], values.type))
            if leaf.nan:
                mask = pc.or_(mask, pc.is_nan(values))
        case Like():
            mask = pc.match_substring_regex(values, leaf.regex)
    return pc.invert(mask) if leaf.negated else mask


_FUNCTIONS = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "=": pc.equal,
    "!=": pc.not_equal,
}


def _compared(leaf: BoundComparison, values: pa.Array) -> pa.Array:
    if leaf.value != leaf.value:
        is_nan = pc.is_nan(values)
        if leaf.op in ("=", ">="):
            return is_nan
        if leaf.op in ("!=", "<"):
            return pc.invert(is_nan)
        return pa.repeat(pa.scalar(leaf.op == "<="), len(values))
    mask = _FUNCTIONS[leaf.op](values, pa.scalar(_scalar(leaf.value), values.type))
    if leaf.column.is_float and leaf.op in (">", ">="):
        return pc.or_(mask, pc.is_nan(values))
    return mask


def _scalar(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value  # Arrow has no order of booleans


def _values(column: BoundColumn, rows: pa.RecordBatch) -> pa.Array:
    """A column in the plain form; see :data:`Plain`."""
    values = rows.column(column.path[0])
    if len(column.path) > 1:
        values = pc.struct_field(values, list(column.path[1:]))
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return _plain(values, column.kind)


def _plain(values: pa.Array, kind: iceberg.IcebergType) -> pa.Array:
    match kind:
        case iceberg.BooleanType():
            return values.cast(pa.bool_()).cast(pa.int8())
        case iceberg.IntegerType() | iceberg.LongType():
            return values.cast(pa.int64())
        case iceberg.FloatType() | iceberg.DoubleType():
            width = pa.float32() if isinstance(kind, iceberg.FloatType) else pa.float64()
            return pc.add(values.cast(width), pa.scalar(0.0, width))  # -0.0 + 0.0 is 0.0
        case iceberg.DecimalType():
            return values.cast(pa.decimal128(38, kind.scale))
        case iceberg.DateType():
            return values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        case iceberg.TimeType():
            return values.cast(pa.time64("us")).cast(pa.int64())
        case iceberg.TimestampType() | iceberg.TimestamptzType():
            zone = values.type.tz if pa.types.is_timestamp(values.type) else None
            return values.cast(pa.timestamp("us", zone)).cast(pa.int64())
        case iceberg.BinaryType() | iceberg.FixedType() | iceberg.UUIDType():
            return values.cast(pa.large_binary())
    return values.cast(pa.large_string())
