"""How jobs are packed into tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.executor.launch.launch import JOBS_PER_SMALL_TASK, TASKS_PER_SLOT, pack
from distop.executor.launch.settings import with_retries


@given(jobs=st.integers(0, 5000), slots=st.integers(1, 64), small=st.booleans())
def test_every_job_is_in_one_task_in_order_and_tasks_are_even(jobs: int, slots: int, small: bool) -> None:
    names = [str(n) for n in range(jobs)]
    packs = pack(names, slots=slots, small=small)
    assert [name for one in packs for name in one] == names
    sizes = {len(one) for one in packs}
    assert 0 not in sizes
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(packs) <= (slots if small else slots * TASKS_PER_SLOT)


def test_big_jobs_have_a_task_each() -> None:
    assert len(pack(["x"] * 300, slots=2, small=False)) == 300


def test_small_jobs_fill_tasks_before_slots() -> None:
    assert len(pack(["x"] * JOBS_PER_SMALL_TASK, slots=8, small=True)) == 1
    assert len(pack(["x"] * (JOBS_PER_SMALL_TASK + 1), slots=8, small=True)) == 2


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_local_masters_try_tasks_again_as_clusters_do(given: str, used: str) -> None:
    assert with_retries(given) == used
