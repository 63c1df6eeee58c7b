"""What commands print, for people and for programs; logs; exit codes.

From outside: :func:`make_output`, ``base.Output``, ``logs.configure``, ``exits``. Imports no other room.
"""

from __future__ import annotations

from distop.cli.output.base import Format, Output
from distop.cli.output.json_output import JsonOutput

__all__ = ["Format", "Output", "make_output"]


def make_output(wanted: Format) -> Output:
    """The output of this name."""
    if wanted == "json":
        return JsonOutput()
    # rich and the client take a third of a second to load, which programs need not wait for.
    from distop.cli.output.human import HumanOutput

    return HumanOutput()
