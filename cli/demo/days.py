"""Days of rows: made up for a demo that has none, and dropped into a landing folder in no order at all."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

FILE = "orders.csv"
KEY = ("id",)
"""The columns of the key of an order."""

SPLIT_BYTES = 16 * 1024
"""Small jobs, so that an operation has some."""

_FIRST = date(2024, 1, 1)


def make_days(folder: Path, days: int, rows: int, seed: int = 2024) -> Counter[str]:
    """Write ``folder/2024-01-01`` and the days after it, each with some ``rows`` orders, always the same.

    Returns the number of rows of each day, by its name.
    """
    chance, made = random.Random(seed), Counter[str]()
    for number in range(days):
        name = str(_FIRST + timedelta(days=number))
        count = chance.randint(rows * 9 // 10, rows * 11 // 10)
        first = made.total()
        lines = [f"{first + at},{name},{chance.randint(1, 9_999)}\n" for at in range(count)]
        (folder / name).mkdir(parents=True)
        (folder / name / FILE).write_text("".join(["id,day,amount\n", *lines]))
        made[name] = count
    return made


class LandingDays:
    """A folder that days land in, in no order at all."""

    def __init__(self, folder: Path, source: Path, options: Mapping[str, Any], seed: int = 2013) -> None:
        self.folder, self._source = folder, source
        self._days = sorted(day.name for day in source.iterdir())
        random.Random(seed).shuffle(self._days)
        (folder / "_config").mkdir(parents=True)
        (folder / "_config" / "ORDERME").touch()
        (folder / "_config" / "ingest.json").write_text(json.dumps(dict(options)))

    def drop(self, share: float) -> int:
        """Drop so much of all days; how many there are now."""
        for day in self._days[: round(len(self._days) * share)]:
            if not (self.folder / day).exists():
                os.rename(self._source / day, self.folder / day)
                (self.folder / day / "_SUCCESS").touch()
        return sum((entry / "_SUCCESS").exists() for entry in self.folder.iterdir())

    def history_done(self) -> None:
        """Say that all of the past is there."""
        (self.folder / "_HISTORYDONE").touch()
