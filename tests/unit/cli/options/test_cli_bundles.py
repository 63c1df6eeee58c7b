"""Options that many commands share."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from distop.cli.options.bundles import Bundle, command, expanded


@dataclass
class Place:
    host: Annotated[str, typer.Option()] = "here"
    port: Annotated[int, typer.Option()] = 1


def loudly(ctx: typer.Context, loud: Annotated[bool, typer.Option()] = False) -> str:
    return f"{ctx.info_name}{'!' if loud else ''}"


def greet(place: Annotated[Place, Bundle(Place)], voice: Annotated[str, Bundle(loudly)], name: str) -> int:
    """Greets."""
    print(f"{voice} {name} {place.host}:{place.port}")
    return 3


def test_a_bundle_is_replaced_by_its_options() -> None:
    made = expanded(greet)
    assert list(inspect.signature(made).parameters) == ["name", "host", "port", "ctx", "loud"]
    assert (made.__name__, made.__doc__) == ("greet", "Greets.")


def test_a_command_gets_what_its_bundles_make_and_returns_an_exit_code() -> None:
    app = typer.Typer()
    command(app)(greet)
    result = CliRunner().invoke(app, ["you", "--port", "7", "--loud"], standalone_mode=False)
    assert result.stdout == "greet! you here:7\n"
    assert result.return_value == 3
