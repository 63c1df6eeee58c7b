"""The terminal: printing to it, and lists that fit its width."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from distop.cli.output.base import some_more
from distop.cli.output.texts import printable, shown

_WIDE = 10_000
"""Width where there is no terminal: programs that read a pipe need whole names."""


def _console(file: Any, *, wide: bool = False) -> Console:
    if isinstance(file, io.TextIOWrapper):  # a name that the terminal cannot show must not cause a failure
        file.reconfigure(errors="backslashreplace")
    width = None if file.isatty() and not wide else _WIDE
    return Console(file=file, width=width, markup=False, highlight=False, emoji=False)


def grid_of(*columns: str) -> Grid:
    """An empty list with these headers."""
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        grid.add_column(column, no_wrap=index == 0, overflow="fold")
    return grid


class Screen:
    """The two streams of a command: results go to ``out``, everything else to ``err``.

    Parameters
    ----------
    wide:
        Whether lists have all their columns, also where the terminal is narrower.
    """

    def __init__(self, *, wide: bool = False) -> None:
        self.out = _console(sys.stdout, wide=wide)
        self.err = _console(sys.stderr)

    def note(self, text: str) -> None:
        """Print a remark to stderr."""
        self.err.print(Text(printable(text), "dim"), soft_wrap=True)

    def pairs(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Print names and values, those that are not empty; a text has lines, a ``Text`` stays as it is."""
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in pairs:
            text = value if isinstance(value, Text) else "\n".join(map(printable, shown(value).split("\n")))
            if text:
                grid.add_row(printable(name), text)
        self.out.print(grid)

    def list(self, grid: Grid, empty: str, more: int, spare: Sequence[str] = ()) -> None:
        """Print a list. Drops columns in ``spare``, one after the other, until the list fits."""
        if not grid.rows:
            self.note(empty)
            return
        left_out = []
        for header in spare:
            if (
                Measurement.get(self.out, self.out.options.update(max_width=_WIDE), grid).maximum
                <= self.out.width
            ):
                break
            grid.columns = [column for column in grid.columns if column.header != header]
            left_out.append(header)
        self.out.print(grid)
        if left_out:
            self.note(f"not shown: {', '.join(left_out)}; use --output wide")
        if more:
            self.note(f"{some_more(more)}: --limit 0 shows all")
