"""Templates in the arguments of schedules, such as ``{{ tick | date('%Y/%m') }}``: rendered for each tick.

Between the braces stands an expression of Jinja, of which only names, filters and texts are allowed: its
sandbox bounds neither the time nor the memory that loops and products take.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.sandbox import SandboxedEnvironment

from distop.coordinator.schedules.times import zone_of
from distop.errors import InvalidArgument

MAX_EXPRESSIONS = 50
"""Most expressions of one argument; each becomes at most some times longer than it is."""

_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)

_DIRECTIVES = frozenset("YymdHMSjGVuz%")
"""Those of ``strftime`` that depend neither on the locale nor on the platform."""


class _Invalid(Exception):
    """A text is no template."""


def has_templates(value: Any) -> bool:
    """Whether there are templates in a text, or in one that is nested in lists and objects."""
    return _count(value) > 0


def rendered(value: Any, tick: float, timezone: str, field: str = "argument") -> Any:
    """A value with the templates in its texts replaced, at any depth.

    Parameters
    ----------
    tick:
        The time that they show, in seconds since the Unix epoch.
    timezone:
        The zone that they show it in; empty: UTC.
    field:
        For errors: where the value is from.

    Raises
    ------
    InvalidArgument
        One is invalid. That depends only on the value: what was rendered once can always be.
    """
    if (count := _count(value)) > MAX_EXPRESSIONS:
        raise InvalidArgument(
            f"{field} has {count:,} templates, at most {MAX_EXPRESSIONS} are allowed",
            details={"field": field},
        )
    try:
        return _rendered(value, datetime.fromtimestamp(int(tick), zone_of(timezone)))
    except _Invalid as error:
        raise InvalidArgument(
            str(error),
            hint="write {{ tick }}, {{ tick | date }} or {{ tick | date('%Y/%m') }}; {{ '{{' }} for braces",
            details={"field": field},
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


def _rendered(value: Any, tick: datetime) -> Any:
    match value:
        case str():
            return _text(value, tick) if "{{" in value else value
        case dict():
            return {name: _rendered(inner, tick) for name, inner in value.items()}
        case list():
            return [_rendered(inner, tick) for inner in value]
    return value


def _text(text: str, tick: datetime) -> str:
    parts = _EXPRESSION.split(text)
    try:
        if any("{{" in literal for literal in parts[::2]):
            raise ValueError("}} is missing")
        parts[1::2] = [_template(expression.strip()).render(tick=tick) for expression in parts[1::2]]
    except (TemplateError, TypeError, ValueError) as error:
        raise _Invalid(f"{text[:200]!r} is not a template: {error}") from None
    return "".join(parts)


@lru_cache(maxsize=1024)
def _template(expression: str) -> Template:
    tree = _ENVIRONMENT.parse(f"{{{{ {expression} }}}}")
    for node in tree.find_all(nodes.Node):
        if isinstance(node, nodes.Name) and node.name != "tick":
            raise ValueError(f"{node.name!r} is unknown, the only name is tick")
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
