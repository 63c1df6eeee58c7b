"""The caller of the call that is being answered, which names a caller may have, and what grants allow it.

Code that shows or records the caller uses :func:`caller`. What follows from grants is computed by pure
functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property

from distop.errors import InvalidArgument, PreconditionFailed, Unauthenticated
from distop.metastore.members.installation import GrantRecord, PolicyRecord
from distop.metastore.records.names import unreadable
from distop.metastore.records.record import encode
from distop.operations.api import Role

GROUP = "group:"
"""Prefix of a group's name in a grant."""

ALL = "*"

MAX_GRANTS = 2_000
MAX_PATTERNS = 100
MAX_TEXT_BYTES = 512
MAX_POLICY_BYTES = 500_000
"""The record is one value of etcd, read by every coordinator."""


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches the text; ``*`` matches any part, nothing else is special."""
    first, *rest = pattern.split(ALL)
    if not rest:
        return pattern == text
    *middle, last = rest
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        start = text.find(part, at, end)
        if start < 0:
            return False
        at = start + len(part)
    return True


@dataclass(frozen=True)
class Held:
    """The rights of one caller: roles by table. Equal ones see the same."""

    grants: frozenset[tuple[Role, str]] = frozenset()

    @cached_property
    def everywhere(self) -> int:
        """The role on every table and the installation; 0 without one."""
        return max((role for role, pattern in self.grants if pattern == ALL), default=0)

    def on(self, table: str) -> int:
        """The role on a table; 0 without one."""
        if self.everywhere == Role.ADMIN:
            return Role.ADMIN
        return max((role for role, pattern in self.grants if matches(pattern, table)), default=0)

    def may_be_below(self, prefix: str) -> bool:
        """Whether a table whose name begins so could be visible."""
        starts = (pattern.partition(ALL) for _, pattern in self.grants)
        return any(
            first.startswith(prefix) or (bool(star) and prefix.startswith(first)) for first, star, _ in starts
        )


EVERYTHING = Held(frozenset({(Role.ADMIN, ALL)}))


def is_of(grant: GrantRecord, subject: str, groups: Iterable[str]) -> bool:
    """Whether a grant applies to a caller. A subject never matches a group."""
    if grant.who.startswith(GROUP):
        pattern = grant.who.removeprefix(GROUP)
        return any(matches(pattern, group) for group in groups)
    return matches(grant.who, subject)


def held_by(policy: PolicyRecord | None, subject: str, groups: Iterable[str] = ()) -> Held:
    """The rights of a caller; all rights without a policy."""
    if policy is None:
        return EVERYTHING
    mine = [grant for grant in policy.grants if is_of(grant, subject, groups)]
    return Held(frozenset((Role[grant.role.upper()], table) for grant in mine for table in grant.tables))


def checked(grant: GrantRecord) -> GrantRecord:
    """A valid grant, or :class:`~distop.errors.InvalidArgument` with the field."""
    if grant.role.upper() not in Role.__members__:
        roles = ", ".join(role.name.lower() for role in Role)
        raise _wrong("role", f"{grant.role[:50]!r} is not a role", f"choose one of {roles}")
    if not 0 < len(grant.tables) <= MAX_PATTERNS:
        raise _wrong("tables", f"a grant has 1 to {MAX_PATTERNS} patterns of tables, not {len(grant.tables)}")
    texts = [("who", grant.who), *(("tables", table) for table in grant.tables)]
    for field, text in texts:
        if not text or text == GROUP:
            raise _wrong(field, f"{field} is empty")
        if (size := len(text.encode(errors="replace"))) > MAX_TEXT_BYTES:
            raise _wrong(field, f"{field} is {size:,} bytes long, at most {MAX_TEXT_BYTES} are allowed")
        if unseen := unreadable(text):
            raise _wrong(field, f"{field} {unseen}")
    return GrantRecord(who=grant.who, role=grant.role.lower(), tables=sorted(set(grant.tables)))


def changed(
    current: PolicyRecord | None,
    *,
    add: Iterable[GrantRecord] = (),
    remove: Iterable[GrantRecord] = (),
    replace: bool = False,
) -> PolicyRecord | None:
    """The policy after adding and removing grants; the same object if nothing changes.

    Grants with the same subject and role are merged.

    Raises
    ------
    InvalidArgument
        A grant is invalid, or there are too many.
    PreconditionFailed
        No caller could change the policy any more.
    """
    kept: dict[tuple[str, str], set[str]] = {}
    for grant in () if replace or current is None else current.grants:
        kept.setdefault((grant.who, grant.role), set()).update(grant.tables)
    for grant in remove:
        for key in [key for key in kept if key[0] == grant.who and grant.role.lower() in ("", key[1])]:
            kept[key] -= set(grant.tables) or kept[key]
            if not kept[key]:
                del kept[key]
    for grant in map(checked, add):
        kept.setdefault((grant.who, grant.role), set()).update(grant.tables)
    grants = [
        checked(GrantRecord(who=who, role=role, tables=sorted(tables)))
        for (who, role), tables in sorted(kept.items())
    ]
    if current is None and not grants:
        return None
    if current is not None and grants == current.grants:
        return current
    if not any(grant.role == "admin" and ALL in grant.tables for grant in grants):
        raise PreconditionFailed(
            "no admin of all tables would be left to change the policy",
            hint="keep one grant: admin on '*'",
        )
    policy = PolicyRecord(grants=grants)
    if len(grants) > MAX_GRANTS or len(encode(policy)) > MAX_POLICY_BYTES:
        raise _wrong("add", f"a policy has at most {MAX_GRANTS:,} grants and {MAX_POLICY_BYTES:,} bytes")
    return policy


def _wrong(field: str, message: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": field})


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity proved by a token or a certificate."""

    subject: str
    groups: frozenset[str] = frozenset()
    how: str = ""
    """``token`` or ``certificate``."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller. One without a name is this process itself, or any caller without authentication."""

    identity: Identity | None = None
    claimed: str = ""
    """The name that the request states; a verified caller may state any."""
    address: str = ""
    """Address of the caller, without a port."""
    held: Held = EVERYTHING

    @property
    def subject(self) -> str:
        """The verified subject; empty if none was verified."""
        return self.identity.subject if self.identity is not None else ""

    def may(self, role: Role, table: str) -> bool:
        """Whether the caller has the role on a table."""
        return self.held.on(table) >= role

    def sees(self, table: str) -> bool:
        """Whether the caller may see the table."""
        return self.may(Role.READER, table)

    def sees_below(self, prefix: str) -> bool:
        """Whether the caller may see tables whose names begin so."""
        return self.held.may_be_below(prefix)


_ITSELF = Caller()

_CALLER: ContextVar[Caller] = ContextVar("caller", default=_ITSELF)


def caller() -> Caller:
    """The caller of the call that this task answers."""
    return _CALLER.get()


def answer_to(who: Caller) -> None:
    """From now on this task acts for this caller."""
    _CALLER.set(who)


CERTIFICATE = "cert:"
SPIFFE = "spiffe://"

RESERVED = (GROUP, CERTIFICATE, SPIFFE)
"""A token whose subject begins so could impersonate a caller with another kind of authentication."""


def check_subject(subject: str) -> str:
    """The subject of a token, or :class:`~distop.errors.Unauthenticated` if it is reserved."""
    if check_name(subject).startswith(RESERVED):
        raise Unauthenticated(f"a token's subject must not begin with {' or '.join(RESERVED)}")
    return subject


def check_name(subject: str) -> str:
    """A name that a grant can contain, or :class:`~distop.errors.Unauthenticated`."""
    if not subject.strip() or len(subject.encode(errors="replace")) > MAX_TEXT_BYTES or unreadable(subject):
        raise Unauthenticated("the subject is empty, too long, or has invisible characters")
    return subject
