"""``make flakes``: how many tests fail on a busy machine that do not fail on a quiet one.

    make flakes RUNS=5
    make flakes RUNS=20 SINCE=HEAD~3
    make flakes ARGS="-m 'not slow'"

Runs all tests, or those in files that have changed since a revision, RUNS times, beside two busy loops
and a loop of ``fsync``. A test that fails counts, whether or not it passes when it is run again. Ends
with one JSON object: ``runs``, ``tests`` (that ran, over all runs), ``failures_per_1000`` and ``names``
(how often each failed). What failures left is kept below ``artifacts/flakes``. The exit code is 0 if
nothing failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.evidence import FAILURES
from support.repository import ROOT
from support.verdicts import Record

KEPT = ROOT / "artifacts" / "flakes"
BUSY = "while True: pass"
SYNCING = """
import os, sys
while True:
    with open(sys.argv[1], "wb") as file:
        file.write(b"x" * 65536)
        os.fsync(file.fileno())
"""


@contextmanager
def load() -> Iterator[None]:
    """Two busy loops and a loop of ``fsync``, for as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as loops:
        for program in (BUSY, BUSY, SYNCING):
            loop = loops.enter_context(subprocess.Popen([sys.executable, "-c", program, f"{folder}/file"]))
            loops.callback(loop.kill)
        yield


def changed_since(revision: str) -> list[str]:
    """Files of tests that differ from a revision's, untracked ones included."""
    git = ["git", "-C", str(ROOT)]
    names = subprocess.check_output([*git, "diff", "--name-only", "--diff-filter=d", revision], text=True)
    names += subprocess.check_output([*git, "ls-files", "--others", "--exclude-standard"], text=True)
    return sorted({name for name in names.split() if Path(name).match("tests/**/test_*.py")})


def run(number: int, workers: int, tests: list[str]) -> Record:
    """One run; raises if it broke off."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "record.json")
        command = [
            sys.executable, "-m", "pytest", "-q", f"-n{workers}", "--dist=loadfile", "--no-loadscope-reorder",
            "--verdicts", f"--record={file}", *tests,
        ]  # fmt: skip
        subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        record = Record.read(file)
    if record.failed and (ROOT / FAILURES).exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        (ROOT / FAILURES).rename(KEPT / f"{os.getpid()}-{number}")
    return record


def main() -> int:
    parser = argparse.ArgumentParser(prog="make flakes", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=5, help="processes that run tests")
    parser.add_argument(
        "--since", metavar="REVISION", help="only files of tests that have changed since then"
    )
    known, others = parser.parse_known_args()
    chosen = changed_since(known.since) if known.since else []
    if known.since and not chosen:
        parser.error(f"no file of tests has changed since {known.since}")
    ran, names = 0, Counter[str]()
    with load():
        for number in range(known.runs):
            record = run(number, known.workers, [*others, *chosen])
            ran += record.passed + len(record.failed)
            names.update(record.failed.keys())
    rate = round(1_000 * names.total() / ran, 3) if ran else None
    print(json.dumps({"runs": known.runs, "tests": ran, "failures_per_1000": rate, "names": names}))
    return int(bool(names) or not ran)


if __name__ == "__main__":
    sys.exit(main())
