"""File access: one set of options, for fsspec (used by steps) and for pyiceberg.

The options are fsspec's, such as ``{"endpoint_url": "http://minio:9000"}`` for S3. A table names them in its
options as ``storage``; an operation uses those that it was started with. The environment of the process
(``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` and so on) supplies the rest. Keys belong there: a table's
options are stored in etcd. All access to a table's files begins here, so allowed locations are checked here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from distop.errors import InvalidArgument, require
from distop.lake.storage.allowed import check_location
from distop.lake.storage.credentials import opened_with
from distop.metastore.records.table import TableRecord
from distop.process.secret import MASK, revealed

StorageOptions: TypeAlias = Mapping[str, Any]
"""fsspec options for the file system of a table."""

S3 = ("s3", "s3a")

FILES_AT_ONCE = 8
"""How many files a process reads or removes concurrently."""

_PYICEBERG = {
    "key": "s3.access-key-id",
    "username": "s3.access-key-id",
    "secret": "s3.secret-access-key",
    "password": "s3.secret-access-key",
    "token": "s3.session-token",
    "endpoint_url": "s3.endpoint",
    "anon": "s3.anonymous",
}
_PYICEBERG_CLIENT = {
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
    "endpoint_url": "s3.endpoint",
    "region_name": "s3.region",
}
_DEFAULT_REGION = "us-east-1"

_SECRET = ("secret", "password", "token", "key", "credential", "sas")
_COLUMNS = ("keys", "schema", "epoch_units")
"""Fields of arguments and options that name columns of a table: whatever their names, nothing in them is
secret."""


def storage_of(table: TableRecord) -> dict[str, Any]:
    """The storage options of a table."""
    return dict(table.options.get("storage", {}))


def require_file_system(url: str) -> None:
    """Raise :class:`~distop.errors.ExtraMissing` if the URL is an S3 URL and S3 is not installed here."""
    if protocol_of(url) in S3:
        require("s3fs", "s3", f"{url!r}")


def protocol_of(url: str) -> str:
    """``file`` for a path without a scheme."""
    scheme, separator, _ = url.partition("://")
    return scheme if separator else "file"


def file_system(url: str, storage: StorageOptions | None = None) -> tuple[Any, str]:
    """The file system of a URL and the path within it. Names are literal: they contain no escape, query or
    chain of file systems (C12).

    Raises :class:`~distop.errors.NotAllowed` if tables may not have files there,
    :class:`~distop.errors.InvalidArgument` if the file system cannot be opened here, and
    :class:`~distop.errors.ExtraMissing` if it is S3, and S3 is not installed here.
    """
    import fsspec

    check_location(url)
    options = opened_with(storage)

    protocol = protocol_of(url)
    if protocol == "file":
        return fsspec.filesystem("file"), "/" + url.removeprefix("file://").lstrip("/")
    require_file_system(url)
    from distop.lake.pyiceberg_private import open_file_system

    try:
        # A step must see the present state, not a cached listing.
        return open_file_system(protocol, url, {"use_listings_cache": False, **revealed(options)})
    except (ImportError, ValueError, TypeError) as error:
        raise InvalidArgument(
            f"{url!r} cannot be reached: {error}",
            hint="install the fsspec package for it on every coordinator and executor",
            details={"field": "storage"},
        ) from error


def io_properties(location: str, storage: StorageOptions | None = None) -> dict[str, str]:
    """The properties that make pyiceberg reach ``location`` as :func:`file_system` does."""
    check_location(location)
    given = revealed(opened_with(storage))
    if protocol_of(location) not in S3:
        return {}
    found = _from_environment()
    client = given.get("client_kwargs") or {}
    for names, options in ((_PYICEBERG_CLIENT, client), (_PYICEBERG, given)):
        for name, property_name in names.items():
            if options.get(name) is not None:
                found[property_name] = str(options[name])
    if "s3.endpoint" in found:
        # Without a region pyiceberg would ask Amazon where the bucket is.
        found.setdefault("s3.region", _DEFAULT_REGION)
    return found


def storage_from(properties: Mapping[str, str]) -> dict[str, Any]:
    """The options that make fsspec reach files as pyiceberg does with these properties: the inverse of
    :func:`io_properties`."""
    names = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.session-token": "token"}
    names["s3.endpoint"] = "endpoint_url"
    found: dict[str, Any] = {option: properties[name] for name, option in names.items() if name in properties}
    if region := properties.get("s3.region"):
        found["client_kwargs"] = {"region_name": region}
    return found


_DELTA = {
    "s3.access-key-id": "AWS_ACCESS_KEY_ID",
    "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session-token": "AWS_SESSION_TOKEN",
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.region": "AWS_REGION",
}


def delta_options(location: str, storage: StorageOptions | None = None) -> dict[str, str]:
    """The options that make ``deltalake`` reach ``location`` as :func:`file_system` does."""
    properties = io_properties(location, storage)
    found = {_DELTA[name]: value for name, value in properties.items() if name in _DELTA}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    return found


def _from_environment() -> dict[str, str]:
    """Settings that pyarrow does not read from the environment although all other clients do."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    found = {"s3.endpoint": endpoint, "s3.region": region}
    return {name: value for name, value in found.items() if value}


def without_secrets(options: Any) -> Any:
    """Options or an argument for display: values of secret options are hidden."""
    if isinstance(options, list):
        return [without_secrets(one) for one in options]
    if not isinstance(options, Mapping):
        return options
    return {
        name: value
        if name in _COLUMNS
        else MASK
        if value
        and not isinstance(value, Mapping | list)
        and any(word in str(name).lower() for word in _SECRET)
        else without_secrets(value)
        for name, value in options.items()
    }
