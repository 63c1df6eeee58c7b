"""Short parts of make explore and make simulate; and planted faults, which explore finds."""

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from explore.plants import PLANTS
from explore.scenarios import SCENARIOS, exploring
from support.repository import ROOT, TESTS

SHORT = 6_000
"""States of each scenario."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_interleaving_breaks_a_law(name: str) -> None:
    """C8, O2, O7, O11, O17, O19, O24, P3, P7, P16: the invariants of the design, in every order."""
    with exploring(name) as search:
        report = search.run(max_states=SHORT)
        assert report.violations == []
        assert report.complete or report.states >= SHORT
        assert report.depth >= 4


@pytest.mark.parametrize("words", PLANTS)
def test_a_planted_fault_is_found(words: str) -> None:
    with exploring(PLANTS[words].scenario, PLANTS[words]) as search:
        report = search.run(max_states=60_000)
        assert len(report.violations) == 1
        lines = search.explained(report.violations[0].schedule)
        assert len(lines) >= len(report.violations[0].schedule)


LINES = (TESTS / "simulate" / "seeds.txt").read_text().splitlines()
KNOWN = [line.split()[0] for line in LINES if line[:1].isdigit()]


def simulated(*arguments: str) -> dict[str, Any]:
    """What the simulation says at its end. A process of its own: it replaces the clock before all imports."""
    done = subprocess.run(
        [sys.executable, "-m", "simulate", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr[-5000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode == 0) == (not said["violations"]), done.stdout[-5000:]
    return said


once = cache(simulated)


@pytest.mark.parametrize("seed", KNOWN)
def test_a_seed_that_broke_a_law_once_breaks_none(seed: str) -> None:
    """O19, O24, P16, H7: when faults stop everything ends, and nothing is left."""
    said = once("--seed", seed)
    assert said["violations"] == 0, said
    assert said["seeds"] == 1


def test_a_seed_happens_again_exactly() -> None:
    said = once("--seed", KNOWN[0])
    assert said == simulated("--seed", KNOWN[0])
    assert said["steps"] > 1000
