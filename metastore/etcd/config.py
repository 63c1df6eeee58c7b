"""How to reach etcd: endpoints, credentials, key prefix, deadlines; and the deadline of the present
caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from distop.errors import InvalidArgument
from distop.metastore.records.keyspace import Keyspace
from distop.process.secret import NONE, Secret

_limit: ContextVar[float] = ContextVar("etcd_deadline", default=math.inf)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Calls to etcd of this task inside end within ``seconds`` in all, whatever longer deadlines they have.

    So there is time left to report the error to the caller.
    """
    token = _limit.set(min(asyncio.get_running_loop().time() + seconds, deadline()))
    try:
        yield
    finally:
        _limit.reset(token)


def deadline() -> float:
    """When the present caller stops waiting, by the clock of the event loop; infinite: no caller waits."""
    return _limit.get()


def deadline_is_over() -> bool:
    """Whether the caller has stopped waiting."""
    return asyncio.get_running_loop().time() >= deadline()


_VARIABLES = {
    "endpoints": "DISTOP_ETCD",
    "prefix": "DISTOP_PREFIX",
    "user": "DISTOP_ETCD_USER",
    "password": "DISTOP_ETCD_PASSWORD",
    "password_file": "DISTOP_ETCD_PASSWORD_FILE",
    "ca_cert": "DISTOP_ETCD_CACERT",
    "cert": "DISTOP_ETCD_CERT",
    "key": "DISTOP_ETCD_KEY",
    "timeout_s": "DISTOP_ETCD_TIMEOUT",
}


USER, PASSWORD, PASSWORD_FILE = _VARIABLES["user"], _VARIABLES["password"], _VARIABLES["password_file"]


@dataclass(frozen=True, kw_only=True)
class EtcdConfig:
    """Where etcd is and how to connect to it. Validates itself; equal configurations compare equal."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    """``host:port`` of the members; tried in turn. URLs are allowed: ``https://`` means TLS."""
    prefix: str = "distOp"
    """First component of every key; several installations share one etcd under different prefixes."""
    user: str = ""
    password: Secret | str = NONE
    """A :class:`~distop.process.secret.Secret` once it is here; so it shows itself as ``***``."""
    password_file: str = ""
    """Path of the file that the password was read from, if any; child processes get this instead."""
    ca_cert: str = ""
    """Path of the CA certificate (PEM). If set, TLS is used. TLS without it trusts the CAs of the
    system."""
    cert: str = ""
    """Path of the client's certificate, for mutual TLS; with ``key``."""
    key: str = ""
    timeout_s: float = 5.0
    """Deadline of one request, in seconds, over all endpoints tried."""
    tls: bool = False
    """Set by ``https://`` endpoints and by ``ca_cert``: nothing is then sent in plain text."""

    def __post_init__(self) -> None:
        schemes = {text.partition("://")[0] for text in self.endpoints if "://" in text}
        if schemes - {"http", "https"} or len(schemes) > 1:
            raise InvalidArgument(
                f"etcd endpoints {','.join(self.endpoints)!r} are not all http:// or all https://",
                details={"field": "endpoints"},
            )
        plain = tuple(text.rpartition("://")[2].rstrip("/") for text in self.endpoints)
        object.__setattr__(self, "endpoints", plain)
        object.__setattr__(self, "password", Secret(self.password))
        object.__setattr__(self, "tls", self.tls or "https" in schemes or bool(self.ca_cert))
        if not self.endpoints or not all(":" in endpoint for endpoint in self.endpoints):
            raise InvalidArgument(
                f"etcd endpoints {','.join(self.endpoints)!r} are not host:port[,host:port...]",
                details={"field": "endpoints"},
            )
        if self.timeout_s <= 0:
            raise InvalidArgument("the etcd timeout must be positive seconds", details={"field": "timeout_s"})
        if self.cert and not self.tls:
            raise InvalidArgument(
                "an etcd client certificate needs TLS",
                hint="name a CA certificate, or write https://",
                details={"field": "cert"},
            )
        if bool(self.cert) != bool(self.key):
            raise InvalidArgument("an etcd client certificate needs its key", details={"field": "cert"})
        _ = self.keyspace

    @cached_property
    def keyspace(self) -> Keyspace:
        """The keys of this installation."""
        return Keyspace(self.prefix)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> EtcdConfig:
        """From ``DISTOP_ETCD``, ``DISTOP_PREFIX`` and so on; raises as :meth:`of`."""
        return cls.of({}, environ)

    @classmethod
    def of(cls, texts: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> EtcdConfig:
        """From texts by field, then from the environment, then the defaults.

        Raises :class:`~distop.errors.InvalidArgument` for invalid values, and for a password file that cannot
        be read.
        """
        given: dict[str, Any] = {
            known: environ[name] for known, name in _VARIABLES.items() if environ.get(name)
        }
        if texts.get("password"):
            given.pop("password_file", None)
        given |= {known: text for known, text in texts.items() if text}
        if "endpoints" in given:
            given["endpoints"] = split_endpoints(given["endpoints"])
        if "password_file" in given:
            given["password_file"] = os.path.abspath(given["password_file"])
            given["password"] = _read_password(given["password_file"])
        if "timeout_s" in given:
            try:
                given["timeout_s"] = float(given["timeout_s"])
            except ValueError:
                raise InvalidArgument(
                    f"the etcd timeout {given['timeout_s']!r} is not a number", details={"field": "timeout_s"}
                ) from None
        return cls(**given)

    def to_env(self) -> dict[str, str]:
        """The environment of a child process that uses the same etcd."""
        env = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in _VARIABLES and option.name != "endpoints" and value != option.default:
                env[_VARIABLES[option.name]] = value.reveal() if isinstance(value, Secret) else str(value)
        if self.tls or self.endpoints != type(self).endpoints:
            scheme = "https://" if self.tls else ""
            env["DISTOP_ETCD"] = ",".join(scheme + endpoint for endpoint in self.endpoints)
        if self.password_file:
            env.pop(PASSWORD, None)
        elif self.password:
            env[PASSWORD_FILE] = ""  # a value that the child would inherit
        return env

    def to_public_env(self) -> dict[str, str]:
        """The environment without the password, for display: at most the path of the password's file."""
        return {name: value for name, value in self.to_env().items() if name != PASSWORD and value}


def _read_password(path: str) -> Secret:
    try:
        return Secret(Path(path).read_text().rstrip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"the password file cannot be read: {error}", details={"field": "etcd_password_file"}
        ) from None


def split_endpoints(text: str) -> tuple[str, ...]:
    """``"a:2379, b:2379"`` to ``("a:2379", "b:2379")``."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
