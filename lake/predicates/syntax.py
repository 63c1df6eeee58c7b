"""The grammar of predicates: a text to a tree, without knowledge of any column.

Comparisons of a column with a value, ``in``, ``between``, ``like``, ``is null`` and ``is nan``, joined by
``and``, ``or`` and ``not``, as in SQL. Names with other characters than letters, digits and ``_`` are in
double quotes, texts in single ones; a quote within is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn, TypeAlias

from distop.errors import InvalidArgument
from distop.operations.arguments import invalid

MAX_DEPTH = 200
"""Most nested conditions."""
MAX_EXPONENT = 400
"""Of a number: no type holds larger ones, and computing with them would take all memory."""
MAX_SHOWN = 60
"""Characters of a text that an error repeats."""

Value: TypeAlias = str | bool | Decimal
"""A literal: a quoted text, ``true`` or ``false``, or a number with all its digits."""

Name: TypeAlias = tuple[str, ...]
"""A column; below a struct, the names from the top level down."""


@dataclass(frozen=True, slots=True)
class Constant:
    """``true`` or ``false`` for every row."""

    value: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column and a value; ``op`` is one of ``< <= > >= = !=``."""

    column: Name
    op: str
    value: Value


@dataclass(frozen=True, slots=True)
class Membership:
    """``column in (...)``."""

    column: Name
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    """``column like 'pattern'``."""

    column: Name
    pattern: str


@dataclass(frozen=True, slots=True)
class NullTest:
    """``column is null``."""

    column: Name


@dataclass(frozen=True, slots=True)
class NanTest:
    """``column is nan``."""

    column: Name


@dataclass(frozen=True, slots=True)
class Negation:
    part: Tree


@dataclass(frozen=True, slots=True)
class Conjunction:
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    parts: tuple[Tree, ...]


Tree: TypeAlias = (
    Constant | Comparison | Membership | Matching | NullTest | NanTest | Negation | Conjunction | Disjunction
)


def parse(text: str, field: str = "filter") -> Tree:
    """The tree of a predicate.

    Raises
    ------
    InvalidArgument
        It is no predicate; names the position, and the ``field`` of the argument.
    """
    return _Parser(text, field).whole()


def columns_of(tree: Tree) -> set[Name]:
    """The columns that a predicate names."""
    names: set[Name] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        match node:
            case Conjunction() | Disjunction():
                waiting += node.parts
            case Negation():
                waiting.append(node.part)
            case Constant():
                pass
            case _:
                names.add(node.column)
    return names


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w$]))
    | (?P<word>[^\W\d][\w$]*)
    | (?P<name>"(?:[^"]|"")*")
    | (?P<text>'(?:[^']|'')*')
    | (?P<sign><=|>=|<>|!=|==|[<>=(),.])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_OPERATORS = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "=": "=", "==": "=", "!=": "!=", "<>": "!="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


class _Parser:
    """Recursive descent: a method for each level of the grammar."""

    def __init__(self, text: str, field: str) -> None:
        self._text, self._field = text, field
        self._depth = 0
        self._tokens = self._read()
        self._token = next(self._tokens)

    def whole(self) -> Tree:
        tree = self._disjunction()
        if self._token.kind != "end":
            self._fail()
        return tree

    # -- the grammar ---------------------------------------------------------------------------------

    def _disjunction(self) -> Tree:
        parts = [self._conjunction()]
        while self._skip("or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Disjunction(tuple(parts))

    def _conjunction(self) -> Tree:
        parts = [self._negation()]
        while self._skip("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else Conjunction(tuple(parts))

    def _negation(self) -> Tree:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refusal(f"it has more than {MAX_DEPTH} nested conditions", "use in (...)")
        try:
            if self._skip("not"):
                return Negation(self._negation())
            if self._skip("("):
                inner = self._disjunction()
                self._expect(")")
                return inner
            return self._condition()
        finally:
            self._depth -= 1

    def _condition(self) -> Tree:
        if self._token.kind in ("number", "text") or self._is("true", "false"):
            return self._value_first()
        column = self._column()
        if (op := _OPERATORS.get(self._token.text)) and self._token.kind == "sign":
            self._advance()
            return Comparison(column, op, self._value())
        if self._skip("is"):
            negated = self._skip("not")
            test = NullTest(column) if self._is("null") else NanTest(column)
            if not self._skip("null"):
                self._expect("nan")
            return Negation(test) if negated else test
        negated = self._skip("not")
        condition = self._range_or_list(column)
        return Negation(condition) if negated else condition

    def _value_first(self) -> Tree:
        value = self._value()
        op = _OPERATORS.get(self._token.text) if self._token.kind == "sign" else None
        if op is None:
            if isinstance(value, bool):
                return Constant(value)
            self._fail()
        self._advance()
        return Comparison(self._column(), _MIRRORED[op], value)

    def _range_or_list(self, column: Name) -> Tree:
        if self._skip("between"):
            least = Comparison(column, ">=", self._value())
            self._expect("and")
            return Conjunction((least, Comparison(column, "<=", self._value())))
        if self._skip("in"):
            self._expect("(")
            values = [self._value()]
            while self._skip(","):
                values.append(self._value())
            self._expect(")")
            return Membership(column, tuple(values))
        self._expect("like")
        if self._token.kind != "text":
            self._fail()
        return Matching(column, self._unquoted())

    def _column(self) -> Name:
        parts = [self._part()]
        while self._skip("."):
            parts.append(self._part())
        return tuple(parts)

    def _part(self) -> str:
        if self._token.kind == "name" and len(self._token.text) > 2:
            return self._unquoted()
        if self._token.kind != "word":
            self._fail()
        return self._advance().text

    def _value(self) -> Value:
        if self._token.kind == "text":
            return self._unquoted()
        if self._is("true", "false"):
            return self._advance().text.lower() == "true"
        if self._token.kind != "number":
            self._fail()
        text = self._token.text
        exponent = text.lower().partition("e")[2].lstrip("+-0") or "0"
        if len(exponent) > 3 or int(exponent) > MAX_EXPONENT:
            raise self._refusal(f"the number {shortened(text)} has an exponent above {MAX_EXPONENT}")
        self._advance()
        return Decimal(text)

    # -- tokens --------------------------------------------------------------------------------------

    def _read(self) -> Iterator[_Token]:
        position = 0
        while True:
            match = _TOKEN.match(self._text, position)
            if match is None:
                start = len(self._text) - len(self._text[position:].lstrip())
                yield _Token("unknown", "", start)
                return
            kind = str(match.lastgroup)
            yield _Token(kind, match[kind], match.start(kind))
            if kind == "end":
                return
            position = match.end()

    def _advance(self) -> _Token:
        token = self._token
        self._token = next(self._tokens)
        return token

    def _is(self, *words: str) -> bool:
        return self._token.kind in ("word", "sign") and self._token.text.lower() in words

    def _skip(self, word: str) -> bool:
        if not self._is(word):
            return False
        self._advance()
        return True

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            self._fail()

    def _unquoted(self) -> str:
        text = self._advance().text
        return text[1:-1].replace(text[0] * 2, text[0])

    def _fail(self) -> NoReturn:
        rest = self._text[self._token.start :]
        where = f"from {shortened(rest)!r} on" if rest else "to its end: something is missing"
        raise self._refusal(f"it cannot be parsed {where}")

    def _refusal(self, why: str, hint: str = "") -> InvalidArgument:
        return invalid(
            self._field, f"the {self._field} {shortened(self._text)!r} is no predicate: {why}", hint
        )


def shortened(text: str) -> str:
    """A text as an error repeats it."""
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
