"""Other people's tests and engines against both doors of the catalog: ``run.py [PART...]``.

pyiceberg's behaviour and table tests, from the source distribution of its version, run against
``EtcdCatalog`` and through the REST service; the REST compatibility kit and engines against a coordinator.
Nothing of theirs is kept in the repository: what engines need lies in ``build/conformance``.
``expected_failures.txt`` says which tests cannot pass and why. Parts are ``etcd``, ``rest``, ``rck`` and
names of engines; by default all of them run. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import engines
import kit
import served

from distop.metastore.etcd.embedded import EtcdProcess

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[1] / "build/conformance"
"""What engines need, for the next run."""

SUITES = {
    "behaviour": ["tests/catalog/test_catalog_behaviors.py", "tests/integration/test_catalog.py"],
    "tables": ["tests/table", "tests/cli/test_console.py", "tests/io/test_pyarrow.py"],
}
DOORS = ("etcd", "rest")
IMPORTED = [
    "sqlalchemy",
    "pytest-lazy-fixtures",
    "pytest-mock",
    "requests-mock",
    "fastavro",
    "thrift",
    "datafusion",
]
"""What pyiceberg's tests import and distop does not need."""


def main(parts: list[str]) -> int:
    known = [*DOORS, "rck", *engines.ENGINES]
    if unknown := set(parts) - set(known):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    wanted = parts or known
    summary: Counter[str] = Counter()
    wrote: list[str] = []
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        folder = Path(name)
        if doors := [door for door in DOORS if door in wanted]:
            _suites(folder, doors, summary)
        if "rck" in wanted:
            (folder / "kit").mkdir()
            with served.coordinator(folder / "rck") as url:
                _judge(kit.run(url, folder / "kit"), "rck", summary)
        if chosen := [engine for engine in engines.ENGINES if engine in wanted]:
            with served.coordinator(folder / "engines") as url:
                wrote = [engine for engine in chosen if engines.run(url, KEPT, engine)]
    failed = sum(count for counted, count in summary.items() if counted.endswith("_unexplained"))
    failed += sum(not count for counted, count in summary.items() if counted.endswith("_passed"))
    print(json.dumps({**summary, "engines": len(wrote), "engines_that_wrote": wrote}))
    return 1 if failed or wrote != chosen else 0


def _suites(folder: Path, doors: list[str], summary: Counter[str]) -> None:
    """pyiceberg's, through these doors."""
    _download(folder)
    with EtcdProcess(folder / "etcd") as etcd:
        for suite, paths in SUITES.items():
            for door in doors:
                outcomes = _run(folder, etcd.endpoint, door, paths)
                _judge({f"{door}::{test}": outcome for test, outcome in outcomes.items()}, suite, summary)


def _judge(outcomes: Mapping[str, str], suite: str, summary: Counter[str]) -> None:
    """Count outcomes, and say why tests have failed."""
    reasons = _expected()
    failed = sorted(test for test, outcome in outcomes.items() if outcome == "failed")
    why = {test: _why(test, reasons) for test in failed}
    for test, reason in why.items():
        print(f"{test}: {reason or 'UNEXPLAINED'}")
    counts = Counter(outcomes.values())
    unexplained = "rck_failed_unexplained" if suite == "rck" else f"{suite}_unexplained"
    for counted, count in (
        (f"{suite}_passed", counts["passed"]),
        (f"{suite}_failed", len(failed)),
        (unexplained, sum(not reason for reason in why.values())),
    ):
        summary[counted] += count


def _why(test: str, reasons: Mapping[str, str]) -> str:
    """The reason that stands there for a test: through this door, or through any."""
    name = test.partition("[")[0].partition("(")[0]
    return reasons.get(test) or reasons.get(name) or reasons.get(name.partition("::")[2], "")


def _expected() -> dict[str, str]:
    lines = (HERE / "expected_failures.txt").read_text().splitlines()
    split = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    return {test: reason for test, _, reason in split}


def _download(folder: Path) -> None:
    """The tests of the installed pyiceberg, without its code, which would hide what is installed."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    sdist = [f"pyiceberg=={version('pyiceberg')}", "--no-binary", "pyiceberg", "--dest", str(folder)]
    subprocess.run([*pip, "download", "--no-deps", "--no-build-isolation", *sdist], check=True)
    extra = ["--no-deps", "--target", str(folder / "imported"), *IMPORTED]
    subprocess.run([*pip, "install", *extra], check=True)
    (folder / "suite").mkdir()
    archive = next(folder.glob("pyiceberg-*.tar.gz"))
    wanted = ["--wildcards", "*/tests", "*/pyproject.toml"]
    subprocess.run(
        ["tar", "-xzf", str(archive), "-C", str(folder / "suite"), "--strip-components=1", *wanted],
        check=True,
    )


def _run(folder: Path, endpoint: str, door: str, paths: list[str]) -> dict[str, str]:
    outcomes = folder / "outcomes.json"
    outcomes.write_text("{}")
    environment = {
        **os.environ,
        "CONFORMANCE_ETCD": endpoint,
        "CONFORMANCE_DOOR": door,
        "CONFORMANCE_WAREHOUSE": f"file://{folder}/warehouse",
        "CONFORMANCE_OUTCOMES": str(outcomes),
        "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}{os.pathsep}{folder / 'imported'}",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-p",
        "pyiceberg_suite",
        "-p",
        "no:asyncio",
    ]
    subprocess.run(
        [*command, "-p", "no:cacheprovider", *paths],
        cwd=folder / "suite",
        env=environment,
        check=False,
    )
    found: dict[str, str] = json.loads(outcomes.read_text())
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
