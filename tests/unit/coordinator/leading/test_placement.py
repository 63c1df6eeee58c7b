"""Rendezvous hashing: everybody agrees, and little moves."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from distop.coordinator.leading.leadership import eligible, preferred

MEMBERS = st.lists(st.text(min_size=1), min_size=1, max_size=8, unique=True)


@given(MEMBERS, st.text(), st.randoms())
def test_everybody_computes_the_same(members: list[str], table: str, random: Random) -> None:
    """O24: in whatever order a member learned of the others."""
    shuffled = members[:]
    random.shuffle(shuffled)
    assert preferred(members, table) == preferred(shuffled, table)
    assert preferred(members, table) in members


@given(MEMBERS, st.text(min_size=1), st.lists(st.text(), max_size=20))
def test_a_member_that_comes_or_goes_moves_only_its_own_tables(
    members: list[str], joining: str, tables: list[str]
) -> None:
    """O24: the others keep what they have."""
    if joining in members:
        return
    for table in tables:
        before, after = preferred(members, table), preferred([*members, joining], table)
        assert after in (before, joining)


def test_tables_are_spread_over_coordinators() -> None:
    members = [f"coordinator-{index}" for index in range(4)]
    shares = Counter(preferred(members, f"table-{index}") for index in range(4000))
    assert all(850 < shares[member] < 1150 for member in members)


def test_without_members_nobody_is_preferred() -> None:
    assert preferred([], "t") is None


def test_a_draining_coordinator_leads_nothing_unless_all_are_draining() -> None:
    """O21"""
    assert eligible({"a": False, "b": True, "c": False}) == {"a", "c"}
    assert eligible({"a": True, "b": True}) == {"a", "b"}
    assert eligible({}) == set()
