"""pyiceberg's behaviour and table tests against ``EtcdCatalog``, from the source distribution of its version.

Nothing of pyiceberg's tests is kept here: pip downloads them for the run, and what they import beside what is
installed. ``expected_failures.txt`` says which tests cannot pass, and why. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from distop.metastore.etcd.embedded import EtcdProcess

HERE = Path(__file__).resolve().parent
SUITES = {
    "behaviour": ["tests/catalog/test_catalog_behaviors.py", "tests/integration/test_catalog.py"],
    "tables": ["tests/table", "tests/cli/test_console.py", "tests/io/test_pyarrow.py"],
}
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


def main() -> int:
    reasons = dict(_expected())
    summary: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        folder = Path(name)
        _download(folder)
        with EtcdProcess(folder / "etcd") as etcd:
            for suite, paths in SUITES.items():
                outcomes = _run(folder, etcd.endpoint, paths, sys.argv[1:])
                failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
                unexplained = {test for test in failed if test.partition("[")[0] not in reasons}
                for test in sorted(failed):
                    print(f"{test}: {reasons.get(test.partition('[')[0], 'UNEXPLAINED')}")
                counts = Counter(outcomes.values())
                summary[f"{suite}_passed"] = counts["passed"]
                summary[f"{suite}_failed"] = len(failed)
                summary[f"{suite}_unexplained"] = len(unexplained)
    print(json.dumps(summary))
    ran = all(summary[f"{suite}_passed"] for suite in SUITES)
    return 0 if ran and not any(summary[f"{suite}_unexplained"] for suite in SUITES) else 1


def _expected() -> list[tuple[str, str]]:
    lines = (HERE / "expected_failures.txt").read_text().splitlines()
    split = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    return [(test, reason) for test, _, reason in split]


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


def _run(folder: Path, endpoint: str, paths: list[str], more: list[str]) -> dict[str, str]:
    outcomes = folder / "outcomes.json"
    outcomes.write_text("{}")
    environment = {
        **os.environ,
        "CONFORMANCE_ETCD": endpoint,
        "CONFORMANCE_WAREHOUSE": f"file://{folder}/warehouse",
        "CONFORMANCE_OUTCOMES": str(outcomes),
        "PYTHONPATH": f"{HERE}{os.pathsep}{folder / 'imported'}",
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
        [*command, "-p", "no:cacheprovider", *paths, *more],
        cwd=folder / "suite",
        env=environment,
        check=False,
    )
    found: dict[str, str] = json.loads(outcomes.read_text())
    return found


if __name__ == "__main__":
    sys.exit(main())
