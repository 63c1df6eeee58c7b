"""The commands that the page shows."""

import shlex
from contextlib import suppress

import pytest
import typer

from distop.proto.commands import COMMANDS, command, to_resolve, to_unblock
from support.command_lines import parse, problem

ODD = "it's a $name"


@pytest.mark.parametrize("what", COMMANDS)
def test_the_command_line_takes_every_command_of_the_page(what: str) -> None:
    names = [ODD] * COMMANDS[what].count("{}")
    words = shlex.split(command(what, *names))
    assert words.pop(0) == "distop"
    assert words.count(ODD) == len(names)
    with suppress(typer.Exit):  # of --help
        parse(words)


def test_decisions_are_whole_commands_that_a_shell_takes() -> None:
    """B8, C10, U1."""
    decisions = (to_unblock("t", ODD), to_resolve(ODD, skippable=True), to_resolve(ODD, skippable=False))
    for text, verbs in zip(decisions, ("retry skip", "retry skip abort", "retry abort"), strict=True):
        lines = [shlex.split(line) for line in text.split(", or ")]
        assert [set(line) & {"retry", "skip", "abort"} for line in lines] == [
            {verb} for verb in verbs.split()
        ]
        assert all(line[0] == "distop" and ODD in line for line in lines)
        for line in lines:
            parse(line[1:])


@pytest.mark.parametrize(
    "line", [" batch retry|skip T B", " operation resolve X retry|abort", " batch retry T|skip"]
)
def test_a_choice_that_is_a_pipe_for_a_shell_is_no_command(line: str) -> None:
    assert problem(line)
    assert not problem(" batch list T | head")
