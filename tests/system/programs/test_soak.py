"""A short `make soak`: what the same load leaves behind with each operation shows within a minute."""

import json
import os
import random
import sys

import pytest

from soak.samples import growing, trends
from support.processes import captured
from support.repository import TESTS

HOUR_S = 3600


@pytest.mark.process
@pytest.mark.slow("puts an even load on two coordinators for a minute")
@pytest.mark.timeout(600)
def test_nothing_grows_under_an_even_load() -> None:
    """G7: a minute of it. Processor time is judged by the whole hour only."""
    short = ["--minutes", "1", "--rate", "7", "--samples", "20", "--coordinators", "2"]
    done = captured(
        [sys.executable, "-m", "soak", *short],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        timeout=540,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["operations"] > 0
    assert (found["failed"], found["grows"]) == (0, [])
    assert {"coordinator_rss_mib_per_hour", "executor_threads_per_hour", "keys_per_hour"} <= found.keys()


def samples_of(**slopes: float) -> list[dict[str, float]]:
    """A sample a minute for an hour, of figures that were 100, each with its own noise and one outlier."""
    rng = random.Random(7)
    found = []
    for minute in range(61):
        noise = 300.0 if minute == 30 else rng.uniform(-3, 3)
        values = {name: 100 + noise + slope * minute / 60 for name, slope in slopes.items()}
        found.append({"at_s": minute * 60.0, **values})
    return found


def test_soak_names_figures_that_grow_and_no_flat_ones() -> None:
    found = trends(
        samples_of(a_rss_mib=0.0, b_rss_mib=40.0, c_threads=20.0, d_cpu_ms_per_operation=80.0, e=900.0),
        warm_up_s=600,
    )
    assert growing(found) == ["b_rss_mib", "c_threads", "d_cpu_ms_per_operation"]
    assert found["b_rss_mib"].per_hour == pytest.approx(40, rel=0.2)
    assert found["a_rss_mib"].over_s == HOUR_S - 600


def test_processor_time_is_not_judged_by_a_few_minutes() -> None:
    short = [sample for sample in samples_of(d_cpu_ms_per_operation=900.0) if sample["at_s"] <= 300]
    assert growing(trends(short, warm_up_s=0)) == []


def test_soak_ignores_growth_during_the_warm_up() -> None:
    samples = [{"at_s": float(at), "a_rss_mib": 50.0 + min(at, 20) * 10} for at in range(60)]
    assert growing(trends(samples, warm_up_s=0)) == ["a_rss_mib"]
    assert growing(trends(samples, warm_up_s=20)) == []
