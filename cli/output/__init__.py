"""What commands print, for people and for programs; logs; exit codes.

From outside: :func:`make_output`, ``base.Output``, ``logs.configure``, ``exits``. Imports no other room.
"""

from __future__ import annotations

from distop.cli.output.base import Format, Output

__all__ = ["Format", "Output", "make_output"]


def make_output(wanted: Format) -> Output:
    """The output with this name."""
    # Each loads what the other does not need: protobuf here, rich and the client there.
    if wanted in ("json", "yaml"):
        from distop.cli.output.programs import JsonOutput, YamlOutput

        return JsonOutput() if wanted == "json" else YamlOutput()
    from distop.cli.output.human import HumanOutput

    return HumanOutput(wide=wanted == "wide")
