"""A short part of `make simulate`: seeds that found something once; and a seed happens again exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
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


once = cache(simulated)


@pytest.mark.parametrize("seed", KNOWN)
def test_a_seed_that_broke_a_law_once_breaks_none(seed: str) -> None:
    """O19, O24, P16: when faults stop everything ends, and nothing is left."""
    said = once("--seed", seed)
    assert said["violations"] == 0, said
    assert said["seeds"] == 1


def test_a_seed_happens_again_exactly() -> None:
    said = once("--seed", KNOWN[0])
    assert said == simulated("--seed", KNOWN[0])
    assert said["steps"] > 1000
