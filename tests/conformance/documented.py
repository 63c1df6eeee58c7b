"""The blocks of ``docs/engines``, run as they stand there, but for the address of the catalog."""

import re
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parents[2] / "docs/engines"
CATALOG = "http://127.0.0.1:7072"
"""The address that the pages name."""


def blocks(engine: str, kind: str, places: dict[str, str]) -> list[str]:
    """Those of this language on the page of an engine, with other places in them."""
    text = (PAGES / f"{engine}.md").read_text()
    shown = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert shown, f"{engine}.md has no block of {kind}"
    for documented, used in places.items():
        shown = [block.replace(documented, used) for block in shown]
    return shown


def statements(engine: str, places: dict[str, str]) -> list[str]:
    """The SQL of a page, statement by statement."""
    return [
        statement.strip()
        for block in blocks(engine, "sql", places)
        for statement in re.split(r";$", block, flags=re.MULTILINE)
        if statement.strip()
    ]


def run_python(engine: str, url: str) -> dict[str, Any]:
    """Run the Python of a page; the names that it leaves."""
    names: dict[str, Any] = {}
    for block in blocks(engine, "python", {CATALOG: url}):
        exec(compile(block, f"{engine}.md", "exec"), names)
    return names
