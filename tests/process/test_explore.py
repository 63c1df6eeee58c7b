"""A short part of `make explore`: some states of each scenario; and planted faults, which it finds."""

from __future__ import annotations

import pytest

from explore.plants import PLANTS
from explore.scenarios import SCENARIOS, exploring

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
