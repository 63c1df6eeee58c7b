"""Iceberg's own REST compatibility kit, in Java, from its published test jars."""

import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 900
# Namespaces must exist before their tables, and a requested location may be spelled in another way.
PROPERTIES = {
    "rck.local": "false",
    "rck.requires-namespace-create": "true",
    "rck.overrides-requested-location": "true",
}


def fetch(folder: Path) -> None:
    """Have Maven download what the kit needs. ``folder`` has room for what it makes of it."""
    shutil.copy(HERE / "kit/pom.xml", folder / "pom.xml")
    command = ["mvn", "--quiet", "--batch-mode", "test-compile"]
    subprocess.run(command, cwd=folder, check=True, timeout=LIMIT_S)


def run(url: str, folder: Path) -> dict[str, str]:
    """The outcome of each of its tests, by ``rck::NAME``; of those of views, by ``views::NAME``."""
    shutil.copy(HERE / "kit/pom.xml", folder / "pom.xml")
    given = [f"-D{name}={value}" for name, value in PROPERTIES.items()]
    subprocess.run(
        ["mvn", "--quiet", "--batch-mode", "test", *given],
        cwd=folder,
        env={**os.environ, "CATALOG_URI": url, "CATALOG_WAREHOUSE": "rck"},
        check=False,
        timeout=LIMIT_S,
        stdout=(folder / "log").open("wb"),
    )
    outcomes: dict[str, str] = {}
    for report in (folder / "target/surefire-reports").glob("*.xml"):
        for case in ET.parse(report).getroot().iter("testcase"):
            children = {child.tag for child in case}
            failed, skipped = children & {"failure", "error"}, "skipped" in children
            outcome = "failed" if failed else "skipped" if skipped else "passed"
            of_views = "ViewCatalog" in case.get("classname", "")
            outcomes[f"{'views' if of_views else 'rck'}::{case.get('name')}"] = outcome
    return outcomes
