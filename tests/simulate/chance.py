"""What a seed decides: how many of everything there are, and which faults happen how often."""

import random
from typing import Any

from simulate.network import WRITES, Fate

BUSY_S, QUIET_S = 120.0, 600.0
"""How long there is work and there are faults; and within which everything must have ended after that."""

OF_PROCESSES = ("killed", "stopped", "paused", "cut", "broken", "lagging")
OF_ETCD = ("down", "compacted")
BY_HAND = ("member_deleted", "hostile_key")
"""Faults that befall a whole process, etcd, and keys: see ``strikes.py``."""

_HEALTHY = (0.0003, 0.003)
"""Seconds that a request or an answer travels."""


class Chance:
    """One seed's decisions. Rates differ from seed to seed, and many faults do not happen at all in one: a
    fault that needs a calm time before it is met, too."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"world {seed}")
        self.faults = True
        """Whether there are faults; they stop, and never come back."""

        def rate(most: float) -> float:
            return 0.0 if rng.random() < 0.4 else most * rng.random() ** 2

        self.coordinators, self.executors, self.tables = rng.choice([1, 2, 2, 3]), rng.choice([1, 2, 2, 3]), 2
        self.coordinator_ttl_s, self.executor_ttl_s = rng.choice([2, 5, 5, 10]), rng.choice([2, 5, 5, 15])
        self.timeout_s = rng.choice([1.0, 2.0, 5.0])
        self.many_keys, self.many_bytes = rng.choice([(3, 200), (3, 200), (1000, 48 << 10)])
        """From how many on something is done in another way."""
        self.acts_every_s = rng.choice([0.5, 1.5, 5.0])
        self.strikes_every_s = rng.choice([4.0, 15.0, 60.0])
        strikes = rng.sample(OF_PROCESSES, rng.randint(1, 4)) + rng.sample(OF_ETCD, rng.choice([0, 1, 1, 2]))
        # Few seeds: whatever breaks by them hides all that comes later.
        by_hand = [rng.choice(BY_HAND)] if rng.random() < 0.3 else []
        self.strikes = sorted(strikes + by_hand)
        self._slow, self._lost, self._unanswered = rate(0.02), rate(0.05), rate(0.05)
        self._broken, self._copied = rate(0.03), rate(0.05)
        self._crash, self._job_crash, self._job_fail = rate(0.003), rate(0.2), rate(0.6)
        self.trouble, self._blocks = rate(1.0), rate(0.6)

    def happens(self, rate: float) -> bool:
        return self.faults and rate > 0 and self.rng.random() < rate

    def some(self, mean: float) -> float:
        """A length of time, sometimes a lot longer than its mean."""
        return self.rng.expovariate(1.0 / mean)

    def word(self) -> str:
        return f"{self.rng.getrandbits(32):08x}"

    def fate(self, method: str) -> Fate:
        """Of a request to etcd, or of a response on a stream (without a method)."""
        rng = self.rng
        there, back = rng.uniform(*_HEALTHY), rng.uniform(*_HEALTHY)
        if not self.faults or not method:
            return Fate(there, back)
        if self.happens(self._slow):
            there, back = self.some(1.0), self.some(1.0)
        crash = rng.choice(["sent", "applied"]) if self.happens(self._crash) else ""
        copy_s = there + self.some(10.0) if method in WRITES and self.happens(self._copied) else 0.0
        return Fate(
            there,
            back,
            arrives=not self.happens(self._lost),
            answered=not self.happens(self._unanswered),
            broken=self.happens(self._broken),
            copy_s=copy_s,
            crash=crash,
        )

    def blocking_s(self) -> float:
        """How long a blocking call takes: storage, user code."""
        if self.happens(self._blocks):
            return min(self.some(self.rng.choice([0.5, 3.0, 10.0])), 25.0)
        return self.rng.uniform(0.0005, 0.01)

    def job_s(self) -> float:
        return self.some(self.rng.choice([0.05, 0.5, 3.0]) if self.faults else 0.05)

    def job_crashes(self) -> bool:
        return self.happens(self._job_crash)

    def job_fails(self) -> bool:
        return self.happens(self._job_fail)

    def pick(self, things: Any) -> Any:
        return self.rng.choice(list(things))
