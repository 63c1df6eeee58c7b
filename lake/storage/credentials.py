"""Storage options of callers: which are allowed, which endpoints they may name, and references to secrets.

They are stored in etcd and used by processes with credentials of their own. So only listed options are
accepted, and none that names a file or a program; this process never sends its own credentials to an endpoint
that a caller chose; and an option may refer to a secret by name instead of containing it: ``${env:NAME}``,
``${file:NAME}``.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distop.errors import InvalidArgument, NotAllowed, Unavailable
from distop.lake.storage.allowed import ENDPOINTS, SOURCES, is_below
from distop.lake.storage.web import addresses, is_public
from distop.process.secret import Secret

SECRET_VARIABLES = "DISTOP_SECRET_"
"""Prefix of the environment variables that options may refer to."""
SECRET_FOLDER = "DISTOP_SECRETS"
"""The environment variable with the folder of the files that options may refer to."""
MAX_SECRET_BYTES = 64 << 10
MAX_PATH = 4096
RESOLVED_S = 60
"""How long it is remembered whether the addresses of a host are public."""
"""Characters; a longer text is not a file name."""

_NAMES = frozenset(
    """
    account_key account_name anon auto_mkdir cache_regions client_kwargs config_kwargs default_block_size
    default_cache_type default_fill_cache endpoint_url fixed_upload_size key max_concurrency password project
    requester_pays s3_additional_kwargs sas_token secret token use_listings_cache use_ssl username
    version_aware
    """.split()  # noqa: SIM905
)
_NAMES_WITHIN = {
    # No api_version: botocore would use it as a path to a service description with endpoints.
    "client_kwargs": frozenset(
        """
        aws_access_key_id aws_secret_access_key aws_session_token endpoint_url region_name use_ssl
        """.split()  # noqa: SIM905
    ),
    "config_kwargs": frozenset(
        """
        connect_timeout max_pool_connections read_timeout region_name retries s3 signature_version
        tcp_keepalive
        """.split()  # noqa: SIM905
    ),
    # How objects are stored; not who else may read them.
    "s3_additional_kwargs": frozenset(
        """
        BucketKeyEnabled ChecksumAlgorithm ExpectedBucketOwner RequestPayer SSECustomerAlgorithm
        SSECustomerKey SSECustomerKeyMD5 SSEKMSEncryptionContext SSEKMSKeyId
        ServerSideEncryption StorageClass Tagging
        """.split()  # noqa: SIM905
    ),
}
_SECRETS = frozenset(
    """
    account_key aws_access_key_id aws_secret_access_key aws_session_token key password sas_token secret token
    SSECustomerKey
    """.split()  # noqa: SIM905
)
_GOOGLE_WAYS = ("browser", "cache", "cloud", "google_default")
"""Values of ``token`` that gcsfs reads as a way to find a token."""
_ACCOUNT = re.compile(r"[A-Za-z0-9-]{1,63}")
_REGION = re.compile(r"[A-Za-z0-9-]{1,63}")
_REFERENCE = re.compile(r"\$\{(env|file):([^{}]*)\}")


def opened_with(storage: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options with all secrets :func:`~distop.process.secret.revealed`, for file systems.

    Raises
    ------
    InvalidArgument
        The option is unknown, or the secret does not exist; ``details["field"]`` is ``storage``.
    NotAllowed
        An endpoint would get credentials that are not the caller's.
    """
    given = dict(storage or {})
    if not given:
        return given
    for name, value in given.items():
        known = _NAMES_WITHIN.get(name)
        if name not in _NAMES or (known is not None and not isinstance(value, Mapping)):
            raise _wrong(f"{name!r} is not an allowed storage option", f"known: {_listed(_NAMES)}")
        for within in sorted(set(value) - known) if known is not None else ():
            raise _wrong(f"{within!r} is not allowed within {name}", f"known: {_listed(known or ())}")
        if known is None and not isinstance(value, str | int | float | None):
            raise _wrong(f"{name} must be a text, a number, or true or false")
    token = str(given.get("token") or "")
    if token in _GOOGLE_WAYS or "\0" in token or (len(token) < MAX_PATH and os.path.exists(token)):
        raise _wrong("token must be the token itself, not a file or a way to find one")
    account = given.get("account_name")
    if account is not None and not _ACCOUNT.fullmatch(str(account)):
        raise _wrong(f"account_name {account!r} is not valid")
    client = given.get("client_kwargs") or {}
    # A part of the host name where no endpoint is given.
    for within in (client, given.get("config_kwargs") or {}):
        if not _REGION.fullmatch(str(within.get("region_name") or "none")):
            raise _wrong(f"region_name {within['region_name']!r} is not valid")
    for endpoint in {given.get("endpoint_url"), client.get("endpoint_url")} - {None, ""}:
        _check_endpoint(str(endpoint), given, client)
    return {name: _resolved(name, value) for name, value in given.items()}


def _check_endpoint(endpoint: str, given: Mapping[str, Any], client: Mapping[str, Any]) -> None:
    ours = (os.environ.get("AWS_ENDPOINT_URL_S3"), os.environ.get("AWS_ENDPOINT_URL"))
    if is_below(endpoint, [*os.environ.get(ENDPOINTS, "").split(","), *filter(None, ours)]):
        return
    hint = "ask the operator to list it: --allow-endpoint, on coordinators and executors"
    pairs = (
        (given.get("key") or given.get("username"), given.get("secret") or given.get("password")),
        (client.get("aws_access_key_id"), client.get("aws_secret_access_key")),
    )
    brought = given.get("anon") is True or any(
        all(isinstance(each, str) and each and not _REFERENCE.search(each) for each in pair) for pair in pairs
    )
    if not brought or any(isinstance(each, str) and _REFERENCE.search(each) for each in _texts(given)):
        raise NotAllowed(
            f"storage names the endpoint {endpoint}, which needs credentials of its own: key and secret",
            hint=hint,
            details={"field": "storage"},
        )
    if SOURCES not in os.environ:
        return
    if not _is_public_host(urlsplit(endpoint).hostname or "", int(time.monotonic() // RESOLVED_S)):
        raise NotAllowed(
            f"the endpoint {endpoint} has no public address", hint=hint, details={"field": "storage"}
        )


@functools.lru_cache(maxsize=256)
def _is_public_host(host: str, period: int) -> bool:
    """Whether all addresses of a host are public; remembered for the period."""
    if not (found := addresses(host)):
        raise Unavailable(f"the host {host!r} of an endpoint has no address", details={"field": "storage"})
    return all(map(is_public, found))


def _texts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [text for each in value.values() for text in _texts(each)]
    return [value]


def _resolved(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {within: _resolved(within, each) for within, each in value.items()}
    if isinstance(value, str) and (found := _REFERENCE.fullmatch(value)):
        return _secret(found[1], found[2])
    return Secret(value) if isinstance(value, str) and name in _SECRETS else value


def _secret(kind: str, name: str) -> Secret:
    if kind == "env":
        if not name.startswith(SECRET_VARIABLES):
            raise _wrong(f"the variable {name!r} may not be used", f"only {SECRET_VARIABLES}...")
        if (value := os.environ.get(name)) is None:
            raise _wrong(
                f"the environment has no {name}", "set it for coordinators, executors and Spark's workers"
            )
        return Secret(value)
    folder = os.environ.get(SECRET_FOLDER, "")
    if not folder or not name or "/" in name or name in (".", ".."):
        raise _wrong(f"there is no secret {name!r}", f"name a file in the folder that {SECRET_FOLDER} names")
    try:
        with (Path(folder) / name).open("rb") as file:
            return Secret(file.read(MAX_SECRET_BYTES).decode().rstrip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(f"the secret {name!r} cannot be read: {type(error).__name__}") from None


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))


def _wrong(message: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": "storage"})
