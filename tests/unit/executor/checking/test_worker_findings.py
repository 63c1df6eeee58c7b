"""What is made of the answers of workers."""

from typing import Any

import pytest

from distop.executor.checking.spark_setup import REMEDIES, Driver, WorkerFinding, failure, findings

DRIVER = Driver("1.2.3", frozenset({"noop", "mine"}), began=1000.0, ended=1030.0)
WELL: dict[str, Any] = {
    "began": 1001.0,
    "ended": 1002.0,
    "host": "w1",
    "user": "distop",
    "python": "/opt/distop/bin/python",
    "version": "1.2.3",
    "missing": "",
    "bare": "",
    "types": ["mine", "noop", "another"],
    "socket": "/run/distop/socket",
    "sidecar": "",
    "etcd": "",
    "stores": {"s3://t": {"error": "", "shared": "yes"}},
}


def codes(**changed: Any) -> list[str]:
    found = findings([WELL | changed], DRIVER)
    assert all(one.remedy and one.workers == ("w1",) for one in found)
    return [one.code for one in found]


def test_a_worker_that_is_well_has_no_findings() -> None:
    assert codes() == []


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"missing": "ModuleNotFoundError: No module named 'distop'"}, "WORKER_DISTOP_MISSING"),
        ({"version": "1.2.2"}, "WORKER_DISTOP_DIFFERS"),
        ({"bare": "No module named 'distop'"}, "WORKER_PYTHON_BARE"),
        ({"types": ["noop"]}, "WORKER_TYPES_DIFFER"),
        ({"sidecar": "no sidecar answers at /run/distop/socket"}, "SIDECAR_UNREACHABLE"),
        ({"etcd": "etcd has not answered"}, "SIDECAR_WITHOUT_ETCD"),
        ({"stores": {"s3://t": {"error": "403", "shared": "yes"}}}, "STORE_UNREACHABLE"),
        ({"stores": {"/data": {"error": "", "shared": ""}}}, "STORE_NOT_SHARED"),
        ({"began": 1001.0 - 600, "ended": 1002.0 - 600}, "CLOCK_SKEW"),
        ({"began": 1001.0 + 600, "ended": 1002.0 + 600}, "CLOCK_SKEW"),
    ],
)
def test_each_problem_of_a_worker_has_one_code(changed: dict[str, Any], code: str) -> None:
    assert codes(**changed) == [code]


def test_a_worker_with_another_distop_has_that_finding_only() -> None:
    """It may not even have the answers."""
    few = {name: WELL[name] for name in ("began", "ended", "host", "user", "python")}
    old = few | {"version": "1.0.0", "missing": ""}
    gone = few | {"version": "unknown", "missing": "no"}
    assert [one.code for one in findings([old, gone], DRIVER)] == [
        "WORKER_DISTOP_DIFFERS",
        "WORKER_DISTOP_MISSING",
    ]


def test_how_far_a_clock_is_off_is_told_as_what_is_certain() -> None:
    (found,) = findings([WELL | {"began": 1631.0, "ended": 1632.0}], DRIVER)
    assert "601 s or more ahead of the driver's" in found.sentence
    (found,) = findings([WELL | {"began": 401.0, "ended": 402.0}], DRIVER)
    assert "598 s or more behind the driver's" in found.sentence


def test_a_problem_of_many_workers_is_reported_once() -> None:
    answers = [WELL | {"host": f"w{number}", "version": "1.0.0"} for number in (2, 1, 2)]
    (found,) = findings(answers, DRIVER)
    assert found.workers == ("w1", "w2")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ('Cannot run program "python3.9": error=2', "WORKER_PYTHON_MISSING"),
        ("No module named 'pyspark')", "WORKER_DISTOP_MISSING"),
        ("PYTHON_VERSION_MISMATCH] Python in worker has 3.9", "WORKER_PYTHON_DIFFERS"),
        ("Job aborted due to stage failure", "WORKER_FAILED"),
    ],
)
def test_a_job_that_fails_says_why(said: str, code: str) -> None:
    found = failure(f"Task 0\n failed: {said}")
    assert found.code == code
    assert said in found.sentence


def test_a_worker_that_ends_is_reported_with_what_python_said() -> None:
    said = (
        "Job aborted: Error from python worker:\n  File daemon.py\n  OSError: AF_UNIX path too long\n"
        f"PYTHONPATH was:\n  /a.zip\n{'at java.base/java.lang.Thread.run ' * 30}"
    )
    sentence = "Spark gave up: File daemon.py OSError: AF_UNIX path too long"
    assert failure(said) == WorkerFinding("WORKER_FAILED", sentence)


def test_a_job_that_nobody_runs_is_no_failure_of_python() -> None:
    assert failure("Job 0 cancelled", within_s=120.0) == WorkerFinding(
        "NO_WORKERS", "no executor of Spark has answered within 120 s"
    )
    assert all(REMEDIES.values())
