"""Callers that coordinators tell apart, and files of their tokens."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from distop.coordinator.access.callers import Caller, answer_to, caller, changed
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.members.installation import GrantRecord, change_policy
from distop.metastore.tables.audit import audit_put


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


def allow(store: SyncEtcd, who: str, role: str, *tables: str) -> None:
    """Give somebody a role, on all of these tables."""
    grant = GrantRecord(who=who, role=role, tables=list(tables))
    audit = audit_put(store.keyspace, "grant", by="root", target=who, at=time.time())
    store.run(
        lambda client: change_policy(client, lambda policy: changed(policy, add=[grant]), uuid4().hex, audit)
    )


@contextmanager
def answering(who: Caller) -> Iterator[None]:
    """Code inside acts for this caller."""
    before = caller()
    answer_to(who)
    try:
        yield
    finally:
        answer_to(before)
