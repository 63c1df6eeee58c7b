"""Static tokens, verified against a file of their hashes: for CI and other callers without an issuer.

A line is ``SUBJECT:SHA256[:GROUP,GROUP...]``, with the SHA-256 of the token in hexadecimal digits; ``#``
begins a comment. The file is read again when it changes: removing a line revokes its token at once.
"""

from __future__ import annotations

import re
from hashlib import sha256

from distop.coordinator.access.callers import Identity
from distop.coordinator.access.subjects import check_subject
from distop.errors import InvalidArgument, Unauthenticated
from distop.process.files import Reread

_LINE = re.compile(r"(?P<subject>\S.*?):(?P<hash>[0-9a-fA-F]{64})(?::(?P<groups>.*))?")


class StaticTokens:
    """The tokens of one file. Raises :class:`~distop.errors.InvalidArgument` if it cannot be read."""

    def __init__(self, path: str) -> None:
        self._known = Reread((path,), _parse)

    def identity(self, token: str) -> Identity | None:
        """The identity of a token; ``None``: unknown.

        It is looked up by its hash, which an attacker cannot choose: the time it takes reveals nothing about
        tokens.
        """
        return self._known.now().get(sha256(token.encode(errors="replace")).hexdigest())


def _parse(content: bytes) -> dict[str, Identity]:
    known: dict[str, Identity] = {}
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if (found := _LINE.fullmatch(text)) is None:
            raise InvalidArgument(
                f"line {number} of the token file is not SUBJECT:SHA256[:GROUP,...]",
                hint="the hash: printf %s TOKEN | sha256sum",
                details={"field": "token_file"},
            )
        groups = frozenset(part.strip() for part in (found["groups"] or "").split(",") if part.strip())
        try:
            subject = check_subject(found["subject"])
        except Unauthenticated as error:
            raise InvalidArgument(
                f"line {number} of the token file: {error.message}", details={"field": "token_file"}
            ) from None
        known[found["hash"].lower()] = Identity(subject, groups, "token")
    return known
