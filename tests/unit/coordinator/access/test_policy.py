"""From grants to decisions."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.coordinator.access.callers import (
    EVERYTHING,
    MAX_GRANTS,
    changed,
    checked,
    held_by,
    is_of,
    matches,
)
from distop.errors import InvalidArgument, PreconditionFailed
from distop.metastore.members.installation import GrantRecord, PolicyRecord
from distop.operations.api import Role


def grant(who: str, role: str = "reader", *tables: str) -> GrantRecord:
    return GrantRecord(who=who, role=role, tables=list(tables or ("*",)))


ROOT = grant("root", "admin")


@given(st.text("ab.*", max_size=8), st.text("ab.", max_size=8))
def test_a_star_is_any_text_and_nothing_else_is_special(pattern: str, text: str) -> None:
    """S3"""
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, text) == bool(re.fullmatch(expression, text))


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    """S1: no pattern makes a coordinator try all ways to cut a name."""
    assert not matches("a*" * 250 + "b", "a" * 512)


def test_each_role_has_what_those_before_it_have() -> None:
    """S3"""
    assert list(Role) == sorted(Role)
    held = held_by(PolicyRecord(grants=[grant("w", "writer", "sales.*")]), "w")
    assert (held.on("sales.orders"), held.on("salesorders"), held.everywhere) == (Role.WRITER, 0, 0)


def test_the_strongest_grant_counts_and_groups_are_no_subjects() -> None:
    """S3"""
    policy = PolicyRecord(grants=[grant("*", "reader", "public"), grant("group:ops", "operator"), ROOT])
    assert held_by(policy, "jane").on("public") == Role.READER
    assert held_by(policy, "jane").on("secret") == 0
    assert held_by(policy, "jane", ["ops"]).on("public") == Role.OPERATOR
    assert held_by(policy, "group:ops").on("secret") == 0
    assert not is_of(grant("ops"), "jane", ["ops"])
    assert held_by(None, "anybody") == EVERYTHING


def test_changes_are_made_of_what_stands() -> None:
    first = changed(None, add=[ROOT, grant("a", "reader", "x")])
    assert first is not None
    assert changed(first, add=[grant("a", "reader", "x")]) is first
    more = changed(first, add=[grant("a", "reader", "y"), grant("a", "WRITER", "z")])
    assert more is not None
    assert [one.tables for one in more.grants if one.who == "a"] == [["x", "y"], ["z"]]
    fewer = changed(more, remove=[grant("a", "reader", "y"), GrantRecord(who="a", role="writer", tables=[])])
    assert fewer == first
    assert changed(fewer, remove=[GrantRecord(who="a", role="", tables=[])]) == changed(None, add=[ROOT])
    assert changed(first, add=[ROOT], replace=True) == changed(None, add=[ROOT])


@pytest.mark.parametrize(
    "change",
    [
        {"add": [grant("a", "admin", "x")]},
        {"remove": [ROOT]},
        {"add": [grant("a")], "replace": True},
        {"replace": True},
    ],
)
def test_a_policy_without_an_admin_is_refused(change: dict[str, object]) -> None:
    """S3: nobody locks everybody out, also not with the first grant."""
    standing = None if "add" in change and not change.get("replace") else PolicyRecord(grants=[ROOT])
    with pytest.raises(PreconditionFailed, match="no admin"):
        changed(standing, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (grant("", "reader"), "who"),
        (grant("group:", "reader"), "who"),
        (grant("a\u202eb", "reader"), "who"),
        (grant("a" * 600, "reader"), "who"),
        (grant("a", "king"), "role"),
        (GrantRecord(who="a", role="reader", tables=[]), "tables"),
        (grant("a", "reader", ""), "tables"),
        (grant("a", "reader", *(f"t{n}" for n in range(200))), "tables"),
    ],
)
def test_what_can_be_no_grant_is_refused_by_field(wrong: GrantRecord, field: str) -> None:
    """U3"""
    with pytest.raises(InvalidArgument) as refused:
        checked(wrong)
    assert refused.value.details["field"] == field


def test_a_policy_is_bounded() -> None:
    with pytest.raises(InvalidArgument, match="at most"):
        changed(None, add=[ROOT, *(grant(f"s{number}") for number in range(MAX_GRANTS))])
