"""What is wrong with workers, by what they say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SKEW_S = 5.0
"""How far clocks may be apart: as of ``distop doctor``."""

SEES = "see docs/deploying.md, Workers of Spark"

REMEDIES = {
    "NO_WORKERS": "see Spark's master: whether it has workers, and whether they have cores and memory left "
    "(spark.cores.max, spark.executor.memory); they must reach the driver (spark.driver.host)",
    "WORKERS_NOT_SEEN": "check again; an executor that never answers has no free slot, or cannot be reached",
    "WORKER_PYTHON_MISSING": f"install it there, or name another: --conf spark.pyspark.python; {SEES}",
    "WORKER_PYTHON_DIFFERS": "give driver and workers the same minor version of Python: --conf "
    f"spark.pyspark.python; {SEES}",
    "WORKER_FAILED": "see the executor's stderr in Spark's web page, or in its work folder",
    "WORKER_DISTOP_MISSING": f"install distop, with the same extras, for that Python; {SEES}",
    "WORKER_DISTOP_DIFFERS": "install the same version of distop on driver and workers",
    "WORKER_PYTHON_BARE": "a PEX and --py-files cannot start sidecars: use a virtual environment at one "
    f"path, or one that venv-pack has made; {SEES}",
    "WORKER_TYPES_DIFFER": "install the packages of these operation types there, or let the modules that "
    "DISTOP_OPERATIONS names be importable",
    "SIDECAR_UNREACHABLE": "run `distop sidecar` on that host as that user, with the same --etcd and "
    "--prefix, and give workers the same DISTOP_RUNTIME_DIR",
    "SIDECAR_WITHOUT_ETCD": "see the sidecar's log, and DISTOP_ETCD, the certificates and the user that it "
    "was started with",
    "STORE_UNREACHABLE": "give the workers what opens the store (AWS_ENDPOINT_URL, credentials, mounts), as "
    "the executor has it",
    "STORE_NOT_SHARED": "mount the same folder on all hosts, or use an object store",
    "CLOCK_SKEW": "synchronise the clocks: deadlines of operations and times in lists are off by as much; "
    "leases and fences are not",
}
"""Every code there is, and what to do."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong on some workers."""

    code: str
    """Stable; one of :data:`REMEDIES`."""
    sentence: str
    workers: tuple[str, ...] = ()
    """Their hosts; none: it concerns no single one."""

    @property
    def remedy(self) -> str:
        """What to do."""
        return REMEDIES[self.code]


@dataclass(frozen=True)
class Driver:
    """What the workers are held against."""

    version: str
    types: frozenset[str]
    began: float
    ended: float
    """When the driver sent them the question, and when it had all answers; Unix time."""


def findings(answers: Iterable[Mapping[str, Any]], driver: Driver) -> list[Finding]:
    """What is wrong, each with the hosts that it is so on."""
    hosts: dict[tuple[str, str], set[str]] = {}
    for answer in answers:
        for code, sentence in judged(answer, driver):
            hosts.setdefault((code, sentence), set()).add(answer["host"])
    return [Finding(*what, workers=tuple(sorted(where))) for what, where in hosts.items()]


def judged(worker: Mapping[str, Any], driver: Driver) -> Iterator[tuple[str, str]]:
    """Code and sentence of what is wrong with one worker."""
    yield from _clock(worker, driver)
    if worker["missing"]:
        yield "WORKER_DISTOP_MISSING", f"{worker['python']} does not load distop: {worker['missing']}"
        return
    if worker["version"] != driver.version:
        versions = f"distop {worker['version']}, the driver {driver.version}"
        yield "WORKER_DISTOP_DIFFERS", f"{worker['python']} has {versions}"
        return
    if worker["bare"]:
        sentence = f"{worker['python']} does not find distop in a process of its own: {worker['bare']}"
        yield "WORKER_PYTHON_BARE", sentence
    if missing := sorted(driver.types - set(worker["types"])):
        yield "WORKER_TYPES_DIFFER", f"operation types are not known there: {', '.join(missing)}"
    if worker["sidecar"]:
        yield "SIDECAR_UNREACHABLE", f"as {worker['user']}: {worker['sidecar']}"
    elif worker["etcd"]:
        yield "SIDECAR_WITHOUT_ETCD", f"the sidecar at {worker['socket']}: {worker['etcd']}"
    for url, found in worker["stores"].items():
        if found["error"]:
            yield "STORE_UNREACHABLE", f"{url} cannot be read and written: {found['error']}"
        elif not found["shared"]:
            yield (
                "STORE_NOT_SHARED",
                f"{url} is another folder there: what the driver has written is not in it",
            )


def _clock(worker: Mapping[str, Any], driver: Driver) -> Iterator[tuple[str, str]]:
    """The worker answered between question and answer, if its clock is right."""
    behind, ahead = driver.began - worker["ended"], worker["began"] - driver.ended
    for off, word in ((behind, "behind"), (ahead, "ahead of")):
        if off > SKEW_S:
            yield "CLOCK_SKEW", f"the clock of {worker['host']} is {off:.0f} s or more {word} the driver's"


def failure(said: str, within_s: float = 0.0) -> Finding:
    """What it means that Spark could not run tasks that fail for nothing of their own.

    Parameters
    ----------
    said:
        By Spark.
    within_s:
        After so many seconds the tasks were given up; 0: they have failed.
    """
    if within_s:
        return Finding("NO_WORKERS", f"no executor of Spark has answered within {within_s:.0f} s")
    said = " ".join(said.split())
    for words, code in (
        ("Cannot run program", "WORKER_PYTHON_MISSING"),
        ("PYTHON_VERSION_MISMATCH", "WORKER_PYTHON_DIFFERS"),
        ("No module named 'pyspark'", "WORKER_DISTOP_MISSING"),
    ):
        if words in said:
            return Finding(code, said[said.index(words) :][:300])
    # What Python has said, if anything; the frames of the JVM behind it say nothing.
    python = said.partition("Error from python worker: ")[2].partition(" PYTHONPATH was:")[0]
    return Finding("WORKER_FAILED", f"Spark gave up: {(python or said)[-400:]}")
