"""Other people's tests and engines against both catalogs: ``run.py [PART...]``.

pyiceberg's behaviour and table tests, from the source distribution of its version, run against
``EtcdCatalog`` and through the REST service; the REST compatibility kit and engines against a coordinator.
Nothing of theirs is kept in the repository: what is downloaded lies in ``build/conformance``.
``expected_failures.txt`` says which tests cannot pass and why. Parts are ``etcd``, ``rest``, ``rck`` and
names of engines; by default all of them run. The last line is JSON. ``fetch [PART...]`` alone downloads what
they need, so that a machine that reaches no package index can be distinguished from one where they fail.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

# What the tests share.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import engines
import kit
import served
from engines import KEPT

from distop.metastore.etcd.embedded import EtcdProcess

HERE = Path(__file__).resolve().parent

SUITES = {
    "behaviour": ["tests/catalog/test_catalog_behaviors.py", "tests/integration/test_catalog.py"],
    "tables": ["tests/table", "tests/cli/test_console.py", "tests/io/test_pyarrow.py"],
}
CATALOGS = ("etcd", "rest")
IMPORTED = """
sqlalchemy==2.1.9 pytest-lazy-fixtures==1.4.1 pytest-mock==3.17.0 requests-mock==1.12.1
fastavro==1.13.1 thrift==0.25.0 datafusion==55.0.0
"""
"""What pyiceberg's tests import and distop does not need."""
DOWNLOAD_S = 300


def main(parts: list[str]) -> int:
    only_fetch = parts[:1] == ["fetch"]
    parts = parts[1:] if only_fetch else parts
    known = (*CATALOGS, "rck", *engines.ENGINES)
    if unknown := set(parts) - set(known):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    wanted = parts or known
    KEPT.mkdir(parents=True, exist_ok=True)
    if only_fetch:
        return _fetch(wanted)
    summary: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        folder = Path(name)
        if catalogs := [catalog for catalog in CATALOGS if catalog in wanted]:
            _suites(folder, catalogs, summary)
        if "rck" in wanted:
            (folder / "kit").mkdir()
            with served.coordinator(folder / "rck") as url:
                _judge(kit.run(url, folder / "kit"), "rck", summary)
        chosen = [engine for engine in engines.ENGINES if engine in wanted]
        left_out = {engine: why for engine in chosen if (why := engines.missing(engine))}
        chosen = [engine for engine in chosen if engine not in left_out]
        wrote = _engines(folder, chosen)
    failed = sum(count for counted, count in summary.items() if counted.endswith("_unexplained"))
    failed += sum(not count for counted, count in summary.items() if counted.endswith("_passed"))
    figures = {**summary, "engines": len(wrote), "engines_that_wrote": wrote}
    print(json.dumps({**figures, "engines_left_out": left_out}))
    return 1 if failed or set(wrote) != set(chosen) else 0


def _fetch(parts: Sequence[str]) -> int:
    """Download what these parts need."""
    for part in parts:
        try:
            if part in CATALOGS:
                _download()
            elif part == "rck":
                kit.fetch(KEPT)
            else:
                if not engines.missing(part):
                    engines.install(part)
        except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            sys.exit(f"what {part} needs cannot be had: {error}")
    return 0


def _engines(folder: Path, chosen: list[str]) -> list[str]:
    """Those that wrote and read back."""
    local = [engine for engine in chosen if engine not in engines.ON_S3]
    stored = [engine for engine in chosen if engine in engines.ON_S3]
    wrote: list[str] = []
    if local:
        with served.coordinator(folder / "engines") as url:
            wrote += [engine for engine in local if engines.run(url, engine)]
    if stored:
        with served.on_s3(folder / "engines-on-s3") as (url, environment):
            wrote += [engine for engine in stored if engines.run(url, engine, environment)]
    return wrote


def _suites(folder: Path, catalogs: list[str], summary: Counter[str]) -> None:
    """Run pyiceberg's suites against these catalogs; count their outcomes in ``summary``."""
    kept = _download()
    with EtcdProcess(folder / "etcd") as etcd:
        for suite, paths in SUITES.items():
            for catalog in catalogs:
                outcomes = _run(kept, folder, etcd.endpoint, catalog, paths)
                _judge(
                    {f"{catalog}::{test}": outcome for test, outcome in outcomes.items()},
                    suite,
                    summary,
                )


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
    """The recorded reason for a test: for this access path, or for any."""
    name = test.partition("[")[0].partition("(")[0]
    return reasons.get(test) or reasons.get(name) or reasons.get(name.partition("::")[2], "")


def _expected() -> dict[str, str]:
    lines = (HERE / "expected_failures.txt").read_text().splitlines()
    split = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    return {test: reason for test, _, reason in split}


def _download() -> Path:
    """Where the tests of the installed pyiceberg are, without its code, which would hide what is installed;
    and what they import."""
    theirs = f"pyiceberg=={version('pyiceberg')}"
    kept, wanted = KEPT / "pyiceberg", " ".join([theirs, *IMPORTED.split()])
    if (kept / "ready").exists() and (kept / "ready").read_text() == wanted:
        return kept
    shutil.rmtree(kept, ignore_errors=True)
    (kept / "suite").mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    sdist = [theirs, "--no-binary", "pyiceberg", "--dest", str(kept)]
    _call(*pip, "download", "--no-deps", "--no-build-isolation", *sdist)
    _call(*pip, "install", "--no-deps", "--target", str(kept / "imported"), *IMPORTED.split())
    archive = next(kept.glob("pyiceberg-*.tar.gz"))
    chosen = ["--strip-components=1", "--wildcards", "*/tests", "*/pyproject.toml"]
    _call("tar", "-xzf", str(archive), "-C", str(kept / "suite"), *chosen)
    (kept / "ready").write_text(wanted)
    return kept


def _call(*command: str) -> None:
    subprocess.run(command, check=True, timeout=DOWNLOAD_S)


def _run(kept: Path, folder: Path, endpoint: str, catalog: str, paths: list[str]) -> dict[str, str]:
    outcomes = folder / "outcomes.json"
    outcomes.write_text("{}")
    environment = {
        **os.environ,
        "CONFORMANCE_ETCD": endpoint,
        "CONFORMANCE_CATALOG": catalog,
        "CONFORMANCE_WAREHOUSE": f"file://{folder}/warehouse",
        "CONFORMANCE_OUTCOMES": str(outcomes),
        "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}{os.pathsep}{kept / 'imported'}",
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
    command += ["-p", "no:cacheprovider", *paths]
    subprocess.run(command, cwd=kept / "suite", env=environment, check=False)
    by_test: dict[str, str] = json.loads(outcomes.read_text())
    return by_test


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
