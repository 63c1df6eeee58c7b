"""What commands print, for people and for programs; logs; exit codes.

From outside: :func:`make_output`, ``base.Output``, ``logs.configure``, ``exits``. Imports no other room.
"""

from __future__ import annotations

from distop.cli.output.base import Format, Output, YamlOutput

__all__ = ["Format", "Output", "make_output"]


def make_output(wanted: Format) -> Output:
    """The output with this name."""
    if wanted in ("json", "yaml"):
        return Output() if wanted == "json" else YamlOutput()
    from distop.cli.output.human import HumanOutput  # loads rich and the client

    return HumanOutput(wide=wanted == "wide")
