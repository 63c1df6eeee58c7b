"""Templates in the arguments of schedules and backfills, such as ``{{ tick | date('%Y/%m') }}``: rendered for
each tick, or each batch.

Between the braces is an expression of Jinja, in which only names, filters and texts are allowed: its
sandbox bounds neither the time nor the memory that loops and products take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.sandbox import SandboxedEnvironment

from distop.errors import InvalidArgument

MAX_EXPRESSIONS = 50
"""Most expressions of one argument; each becomes at most some times longer than it is."""

_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)

_DIRECTIVES = frozenset("YymdHMSjGVuz%")
"""Those of ``strftime`` that depend neither on the locale nor on the platform."""


_EXAMPLES = {
    "batch": "{{ batch }}",
    "tick": "{{ tick }}, {{ tick | date }} or {{ tick | date('%Y/%m') }}",
}
"""What can be written, for errors."""


class _Invalid(Exception):
    """A text is no template."""


def has_templates(value: Any) -> bool:
    """Whether there are templates in a text, or in one that is nested in lists and objects."""
    return _count(value) > 0


def rendered(value: Any, names: Mapping[str, datetime | str], field: str = "argument") -> Any:
    """A value with the templates in its texts replaced, at any depth.

    Parameters
    ----------
    names:
        The values that templates may name.
    field:
        For errors: where the value is from.

    Raises
    ------
    InvalidArgument
        One is invalid. That depends only on the value and the names: what was rendered once can always be.
    """
    if (count := _count(value)) > MAX_EXPRESSIONS:
        raise InvalidArgument(
            f"{field} has {count:,} templates, at most {MAX_EXPRESSIONS} are allowed",
            details={"field": field},
        )
    try:
        return _rendered(value, names)
    except _Invalid as error:
        examples = ", ".join(example for name, example in _EXAMPLES.items() if name in names)
        raise InvalidArgument(
            str(error), hint=f"write {examples}; {{{{ '{{{{' }}}} for braces", details={"field": field}
        ) from None


def _count(value: Any) -> int:
    match value:
        case str():
            return value.count("{{")
        case dict():
            return sum(map(_count, value.values()))
        case list():
            return sum(map(_count, value))
    return 0


def _rendered(value: Any, names: Mapping[str, datetime | str]) -> Any:
    match value:
        case str():
            return _text(value, names) if "{{" in value else value
        case dict():
            return {name: _rendered(inner, names) for name, inner in value.items()}
        case list():
            return [_rendered(inner, names) for inner in value]
    return value


def _text(text: str, names: Mapping[str, datetime | str]) -> str:
    parts, known = _EXPRESSION.split(text), tuple(names)
    try:
        if any("{{" in literal for literal in parts[::2]):
            raise ValueError("}} is missing")
        parts[1::2] = [_template(inner.strip(), known).render(names) for inner in parts[1::2]]
    except (TemplateError, TypeError, ValueError) as error:
        raise _Invalid(f"{text[:200]!r} is not a template: {error}") from None
    return "".join(parts)


@lru_cache(maxsize=1024)
def _template(expression: str, names: tuple[str, ...]) -> Template:
    tree = _ENVIRONMENT.parse(f"{{{{ {expression} }}}}")
    for node in tree.find_all(nodes.Node):
        if isinstance(node, nodes.Name) and node.name not in names:
            raise ValueError(f"{node.name!r} is unknown, there is only {' and '.join(names)}")
        if not isinstance(node, nodes.Output | nodes.Name | nodes.Filter | nodes.Const):
            raise ValueError("only names, filters and texts are allowed")
    return _ENVIRONMENT.from_string(tree)


def _date(tick: object, pattern: object = "%Y-%m-%d") -> str:
    """The filter ``date``."""
    if not isinstance(tick, datetime) or not isinstance(pattern, str):
        raise TypeError("date takes tick, and a text such as '%Y/%m'")

    def shown(directive: re.Match[str]) -> str:
        if directive[1] not in _DIRECTIVES:
            raise ValueError(f"{directive[0]!r} is none of %{', %'.join(sorted(_DIRECTIVES))}")
        return tick.strftime(directive[0])

    return re.sub(r"%(.?)", shown, pattern, flags=re.DOTALL)


def _finalized(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


_ENVIRONMENT = SandboxedEnvironment(finalize=_finalized)
_ENVIRONMENT.globals.clear()
_ENVIRONMENT.tests.clear()
_ENVIRONMENT.filters = {"date": _date}
