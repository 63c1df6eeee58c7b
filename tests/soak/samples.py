"""What a soak looks at: samples of processes and of etcd, and how they move with time."""

import os
import statistics
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

MIB = 2**20
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Limit:
    """How much a figure may move over the measured part of a run and still be flat: the larger of the two."""

    share: float
    """Of what it was in the middle."""
    least: float
    """In its own unit."""
    over_s: float = 0.0
    """Over a shorter time than this it says nothing."""


LIMITS: Mapping[str, Limit] = {
    "rss_mib": Limit(0.10, 16.0),
    "threads": Limit(0.05, 8.0),
    "descriptors": Limit(0.05, 8.0),
    "keys": Limit(0.05, 200.0),
    "cpu_ms_per_operation": Limit(0.25, 0.5, over_s=600.0),
}
"""By the end of the figure's name. A figure without one is shown and not judged."""


def rss_mib(pid: int) -> float:
    """Resident memory of a process at present."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def etcd_metrics(endpoint: str, *names: str) -> dict[str, float]:
    """Metrics without labels, as etcd gives them; those it does not know are left out."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    metrics = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(metrics[name]) for name in names if name in metrics}


@dataclass(frozen=True)
class Trend:
    """How a figure moved."""

    middle: float
    per_hour: float
    over_s: float
    """From the first measured sample to the last."""

    @property
    def moved(self) -> float:
        """Along the slope, in that time."""
        return self.per_hour * self.over_s / 3600

    def grows(self, limit: Limit) -> bool:
        return self.over_s >= limit.over_s and self.moved > max(limit.share * abs(self.middle), limit.least)


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """The slope of samples (seconds, value): the median over all pairs, which no single one moves."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] > a[0]]
    slope = statistics.median(slopes) if slopes else 0.0
    middle = statistics.median(value for _, value in points)
    return Trend(middle, slope * 3600, points[-1][0] - points[0][0])


def trends(samples: Sequence[Mapping[str, float]], warm_up_s: float) -> dict[str, Trend]:
    """Of every figure, from the samples after the warm-up; ``at_s`` says when each was taken."""
    measured = [sample for sample in samples if sample["at_s"] >= warm_up_s]
    names = {name for sample in measured for name in sample} - {"at_s"}
    return {
        name: trend([(sample["at_s"], sample[name]) for sample in measured if name in sample])
        for name in sorted(names)
    }


def growing(measured: Mapping[str, Trend]) -> list[str]:
    """The figures that are not flat."""
    return [
        name
        for name, line in measured.items()
        if any(name.endswith(end) and line.grows(limit) for end, limit in LIMITS.items())
    ]
