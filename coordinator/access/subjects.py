"""Names of callers, and prefixes reserved for certain kinds of authentication."""

from __future__ import annotations

from distop.coordinator.access.policy import GROUP, MAX_TEXT_BYTES
from distop.errors import Unauthenticated
from distop.metastore.records.names import unreadable

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
