"""Results of 10,000 jobs a second, against etcd's own grouped transactions: what ``bench/completions.py`` has
of it."""

from __future__ import annotations

import completions


def measure() -> dict[str, float]:
    """The figures, and their tables on the screen."""
    figures = completions.measure(completions.SIZES[:2])
    return {name: value for name, value in figures.items() if name != "one_job_p50_ms"}


if __name__ == "__main__":
    from common import print_json

    print_json(**measure())
