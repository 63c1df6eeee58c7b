"""Options that many commands share, defined once.

A *bundle* is a function with typer parameters that makes one value of them. A command takes one parameter
annotated with it, and gets all its options::

    def etcd_config(etcd: Annotated[str, typer.Option(...)] = "", ...) -> EtcdConfig: ...

    @command(app)
    def coordinator(etcd: Annotated[EtcdConfig, Bundle(etcd_config)]) -> int: ...

A bundle may be made of others in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from distop.errors import DistopError

F = TypeVar("F", bound=Callable[..., int | None])


class Bundle:
    """Marks a parameter whose value ``make`` builds from its own options; help lists them in a ``panel``."""

    def __init__(self, make: Callable[..., Any], *, panel: str | None = None) -> None:
        self.make = expanded(make)
        self.parameters = inspect.signature(self.make).parameters
        if panel is not None:
            for parameter in self.parameters.values():
                for mark in parameter.annotation.__metadata__:
                    mark.rich_help_panel = panel


def command(app: typer.Typer, name: str | None = None, **settings: Any) -> Callable[[F], F]:
    """Register a function as a command. It returns the exit code; ``None`` is 0."""

    def register(function: F) -> F:
        # Lists of commands keep the line ends of a text.
        brief = " ".join((function.__doc__ or "").partition("\n\n")[0].split())
        app.command(name or function.__name__.replace("_", "-"), short_help=brief, **settings)(
            expanded(function)
        )
        return function

    return register


def expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its bundles replaced by their options: its own parameters first, then theirs."""
    bundles: dict[str, Bundle] = {}
    own: dict[str, inspect.Parameter] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        marks = getattr(parameter.annotation, "__metadata__", ())
        bundle = next((mark for mark in marks if isinstance(mark, Bundle)), None)
        if bundle is None:
            own[parameter.name] = parameter
        else:
            bundles[parameter.name] = bundle
    parameters = dict(own)
    for bundle in bundles.values():
        if twice := parameters.keys() & bundle.parameters:
            raise TypeError(f"{function.__name__}: two options are called {', '.join(sorted(twice))}")
        parameters |= bundle.parameters

    def run(**given: Any) -> Any:
        made = {
            name: bundle.make(**{option: given[option] for option in bundle.parameters})
            for name, bundle in bundles.items()
        }
        try:
            return function(**{option: given[option] for option in own}, **made)
        except DistopError as error:
            for value in made.values():
                if hasattr(value, "suggest"):
                    value.suggest(error)
            raise

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters.values()}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters.values()]
    )
    return run
