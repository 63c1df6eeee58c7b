"""The commands that the page shows."""

import shlex
from contextlib import suppress

import pytest
import typer

from distop.coordinator.web.actions import COMMANDS, command
from support.command_lines import parse

ODD = "it's a $name"


@pytest.mark.parametrize("what", COMMANDS)
def test_the_command_line_takes_every_command_of_the_page(what: str) -> None:
    names = [ODD] * COMMANDS[what].count("{}")
    words = shlex.split(command(what, *names))
    assert words.pop(0) == "distop"
    assert words.count(ODD) == len(names)
    with suppress(typer.Exit):  # of --help
        parse(words)
