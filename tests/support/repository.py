"""Where the repository is, and the product's code in it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def product_sources() -> list[Path]:
    """Every module of the packages, in every room; as paths below ``src/distop``."""
    return sorted((ROOT / "src" / "distop").glob("*/**/*.py"))
