"""File access: one set of options, for fsspec (used by steps) and for pyiceberg; listing and removing by
literal names.

pyiceberg parses locations as URLs: it reads ``a#1.parquet`` as ``a``. Code that removes files must not
remove another file because of such a name (C12).

The options are fsspec's, such as ``{"endpoint_url": "http://minio:9000"}`` for S3. A table names them in
its options as ``storage``; an operation uses those that it was started with. The environment of the process
(``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` and so on) supplies the rest. Keys belong there: a table's
options are stored in etcd. All access to a table's files begins here, so allowed locations are checked
here.

The options of callers are stored in etcd and used by processes with credentials of their own. So only
listed ones are accepted, and none that names a file or a program; this process never sends its own
credentials to an endpoint that a caller chose; and an option may refer to a secret by name instead of
containing it: ``${env:NAME}``, ``${file:NAME}``.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from distop.errors import InvalidArgument, NotAllowed, Unavailable, require
from distop.lake.storage.allowed import ENDPOINTS, SOURCES, check_location, is_below, web_sources
from distop.metastore.records.table import TableRecord
from distop.process.secret import MASK, Secret, revealed

if TYPE_CHECKING:
    import aiohttp


def web_options(url: str) -> dict[str, Any]:
    """Options of fsspec for a source of this URL."""
    if web_sources() is None or not url.lower().startswith(("http://", "https://")):
        return {}
    return {"get_client": _client}


async def _client(**given: Any) -> aiohttp.ClientSession:
    import aiohttp

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=_socket), **given)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for one resolved address; called for each connection, also after a redirect."""
    family, kind, protocol, _, endpoint = address
    if not may_connect(endpoint[0]):
        raise OSError(f"{endpoint[0]} may not be reached from here")
    return socket.socket(family, kind, protocol)


def may_connect(address: str) -> bool:
    """Whether the address is a listed host's or, where any host is allowed, a public one."""
    hosts = web_sources()
    if hosts is None or ("" in hosts and is_public(address)):
        return True
    return any(address in addresses(host) for host in hosts if host)


def is_public(address: str) -> bool:
    """Whether the address is public: no loopback, link-local or private address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_global


def addresses(host: str) -> set[str]:
    """The addresses of a host name; none if it is unknown."""
    try:
        return {str(resolved[4][0]) for resolved in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()


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
    own = (os.environ.get("AWS_ENDPOINT_URL_S3"), os.environ.get("AWS_ENDPOINT_URL"))
    if is_below(endpoint, [*os.environ.get(ENDPOINTS, "").split(","), *filter(None, own)]):
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
    if not (resolved := addresses(host)):
        raise Unavailable(f"the host {host!r} of an endpoint has no address", details={"field": "storage"})
    return all(map(is_public, resolved))


def _texts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [text for each in value.values() for text in _texts(each)]
    return [value]


def _resolved(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {within: _resolved(within, each) for within, each in value.items()}
    if isinstance(value, str) and (reference := _REFERENCE.fullmatch(value)):
        return _secret(reference[1], reference[2])
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
    properties = _from_environment()
    client = given.get("client_kwargs") or {}
    for names, options in ((_PYICEBERG_CLIENT, client), (_PYICEBERG, given)):
        for name, property_name in names.items():
            if options.get(name) is not None:
                properties[property_name] = str(options[name])
    if "s3.endpoint" in properties:
        # Without a region pyiceberg would ask Amazon where the bucket is.
        properties.setdefault("s3.region", _DEFAULT_REGION)
    return properties


def storage_from(properties: Mapping[str, str]) -> dict[str, Any]:
    """The options that make fsspec reach files as pyiceberg does with these properties: the inverse of
    :func:`io_properties`."""
    names = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.session-token": "token"}
    names["s3.endpoint"] = "endpoint_url"
    storage: dict[str, Any] = {
        option: properties[name] for name, option in names.items() if name in properties
    }
    if region := properties.get("s3.region"):
        storage["client_kwargs"] = {"region_name": region}
    return storage


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
    options = {_DELTA[name]: value for name, value in properties.items() if name in _DELTA}
    if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    return options


def _from_environment() -> dict[str, str]:
    """Settings that pyarrow does not read from the environment although all other clients do."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    settings = {"s3.endpoint": endpoint, "s3.region": region}
    return {name: value for name, value in settings.items() if value}


def without_secrets(options: Any) -> Any:
    """Options or an argument for display: values of secret options are hidden."""
    if isinstance(options, list):
        return [without_secrets(option) for option in options]
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


_TAGS = ("ETag", "etag", "md5Hash", "contentMD5", "checksum", "version_id")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


def entity_tag(info: Mapping[str, Any]) -> str:
    """Changes whenever the file is written again; empty if the file system has no such tag."""
    return next((str(info[name]).strip('"') for name in _TAGS if info.get(name)), "")


def version(info: Mapping[str, Any]) -> str:
    """Changes whenever a file is written again, even an empty one: the tags of those are equal, so that the
    time counts, too."""
    return f"{entity_tag(info)} {modified(info)}".strip()


def modified(info: Mapping[str, Any]) -> datetime | None:
    """When the file was last written, in UTC; ``None`` if the file system does not say."""
    value = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


class Entry(NamedTuple):
    """A file or folder in a folder."""

    name: str
    is_folder: bool
    modified_at: float
    """Seconds since the Unix epoch; infinite if the file system does not say."""


def entries(location: str, storage: StorageOptions | None = None) -> list[Entry]:
    """The content of a folder, without sub-folders' content; nothing if it does not exist."""
    filesystem, path = file_system(location, storage)
    try:
        listed = filesystem.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    children = []
    for info in listed:
        # Some stores list a folder as an entry of itself.
        if str(info["name"]).strip("/") == str(path).strip("/"):
            continue
        at = modified(info)
        name = str(info["name"]).rstrip("/").rpartition("/")[2]
        children.append(Entry(name, info["type"] == "directory", at.timestamp() if at else float("inf")))
    return children


def remove_file(location: str, storage: StorageOptions | None = None) -> bool:
    """Remove a file; return whether it existed, as far as the file system says."""
    filesystem, path = file_system(location, storage)
    try:
        filesystem.rm_file(path)
    except FileNotFoundError:
        return False
    return True


def inside(locations: Iterable[str], folder: str) -> Iterator[str]:
    """Those that are certainly in a folder. Before files are removed whose names stand in a table's metadata:
    who writes the table can put names of other tables' files there."""
    return (
        location
        for location in locations
        if ".." not in location.split("/") and is_below(location, (folder,))
    )


def remove_files(locations: Iterable[str], storage: StorageOptions | None = None) -> int:
    """Remove files; return how many existed."""
    victims = sorted(locations)
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="remove") as pool:
        return sum(pool.map(lambda location: remove_file(location, storage), victims))


def remove_if_empty(location: str) -> None:
    """Remove an empty folder on a local disk; object stores have no empty folders."""
    if protocol_of(location) == "file":
        # The system refuses, correctly, when a new file has appeared.
        with suppress(OSError):
            os.rmdir(file_system(location)[1])
