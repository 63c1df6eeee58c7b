"""Files of tokens for coordinators that tell callers apart."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path


def token_line(subject: str, token: str, groups: Iterable[str] = ()) -> str:
    """A line of a file of tokens."""
    return f"{subject}:{sha256(token.encode()).hexdigest()}:{','.join(groups)}\n"


def token_of(subject: str) -> str:
    """The token that :func:`token_file` gives a subject."""
    return f"the token of {subject}"


def token_file(folder: Path, subjects: Iterable[str]) -> str:
    """The path of a file with a token for each of them."""
    path = folder / "tokens"
    path.write_text("".join(token_line(subject, token_of(subject)) for subject in subjects))
    return str(path)
