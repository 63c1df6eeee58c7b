"""``distop demo``, and what it shares with ``make demo``.

Processes that are killed, days that land in a folder, and the proof. :func:`distop.cli.demo.play.play` is the
small demo; the folder ``demo`` of the repository has a longer one, with real flights.
"""
