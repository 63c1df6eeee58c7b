"""Tokens from a file of hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from distop.coordinator.access.authentication import IdentityConfig, bearer
from distop.coordinator.access.callers import Identity
from distop.coordinator.access.static import StaticTokens
from distop.errors import InvalidArgument, Unauthenticated
from support.services.tokens import token_line


def test_a_token_is_told_from_its_hash_and_the_file_is_read_again(tmp_path: Path) -> None:
    """S4: a line that is taken away ends its token, without a restart."""
    path = tmp_path / "tokens"
    path.write_text("# CI\n\n" + token_line("ci:main", "one", ["ops", "dev"]))
    tokens = StaticTokens(str(path))
    assert tokens.identity("one") == Identity("ci:main", frozenset({"ops", "dev"}), "token")
    assert tokens.identity("two") is None
    path.write_text(token_line("jane", "two"))
    assert (tokens.identity("one"), tokens.identity("two")) == (None, Identity("jane", how="token"))


def test_a_file_that_makes_no_sense_or_is_away_changes_nothing(tmp_path: Path) -> None:
    """S4"""
    path = tmp_path / "tokens"
    path.write_text(token_line("jane", "one"))
    tokens = StaticTokens(str(path))
    path.write_text("jane:one\n")
    assert tokens.identity("one") is not None
    path.unlink()
    assert tokens.identity("one") is not None


@pytest.mark.parametrize("line", ["jane", "jane:abc", ":" + "0" * 64, "group:ops:" + "0" * 64])
def test_a_line_that_is_none_is_refused_at_the_start(tmp_path: Path, line: str) -> None:
    """U3"""
    path = tmp_path / "tokens"
    path.write_text(line)
    with pytest.raises(InvalidArgument, match="line 1"):
        StaticTokens(str(path))


def test_a_call_has_at_most_one_authorization() -> None:
    assert [bearer(one).reveal() for one in ([], ["Bearer abc"], ["bearer  abc "])] == ["", "abc", "abc"]
    for headers in (["Basic abc"], ["Bearer a", "Bearer b"]):
        with pytest.raises(Unauthenticated):
            bearer(headers)


def test_an_admin_whom_nobody_could_identify_is_refused(tmp_path: Path) -> None:
    """S4: its policy would lock everybody out."""
    with pytest.raises(InvalidArgument, match="nobody could show to be the admin 'root'"):
        IdentityConfig(admins=("root",))
    assert IdentityConfig(admins=("root",), token_file=str(tmp_path / "tokens")).is_set
