"""A short part of `make simulate`: seeds that found something once; and a seed happens again exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from support.repository import ROOT, TESTS

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


@pytest.mark.parametrize("part", [0, 1, 2])
def test_seeds_that_broke_a_law_once_break_none(part: int) -> None:
    """O19, O24, P16: when faults stop everything ends, and nothing is left."""
    seeds = KNOWN[part::3]
    said = simulated("--seed", *seeds)
    assert said["violations"] == 0, said
    assert said["seeds"] == len(seeds) > 0


def test_a_seed_happens_again_exactly() -> None:
    first, second = (simulated("--seed", "1") for _ in range(2))
    assert first == second
    assert first["steps"] > 1000
