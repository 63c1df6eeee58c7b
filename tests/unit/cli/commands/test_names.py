"""A shell completes the names of what exists, wherever a command takes one; every list has every output."""

from support.command_lines import leaves

NAMED = {"table", "operation", "batch", "branch", "snapshot", "source", "member", "type", "then", "replaces"}
"""Parameters that name what the service knows."""

NEW = {("batch add", "batch"), ("executor", "type"), ("landing", "table"), ("landing", "type")}
"""What does not exist yet, and options of programs."""

WHOLE = {"schedule", "watermark", "grant", "alert"}
"""Lists that do not come in pages."""


def test_each_name_of_what_exists_is_completed() -> None:
    without = {
        (" ".join(path), parameter.name)
        for path, command in leaves()
        for parameter in command.params
        if parameter.name in NAMED and parameter._custom_shell_complete is None
    }
    assert without == NEW


def test_each_list_takes_every_output_and_those_in_pages_a_limit() -> None:
    lists = {
        path[0]: {option.name for option in verb.params} for path, verb in leaves() if path[1:] == ["list"]
    }
    assert len(lists) >= 10
    assert all("output" in options for options in lists.values())
    assert {noun for noun, options in lists.items() if "limit" not in options} == WHOLE
