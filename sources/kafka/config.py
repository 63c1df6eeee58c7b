"""Settings of the Kafka client: which ones callers may set, sources of secrets, and our own.

A caller's settings are stored in etcd, where operators can read them, and used by processes with rights of
their own. So only listed settings are accepted, and none that runs a program or loads a library. Secrets are
references, and only to values that were put there for this purpose: otherwise every caller that may start an
operation could have any variable of the coordinator sent to its own server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distop.lake.storage.allowed import check_source
from distop.process.secret import Secret
from distop.sources.kafka.argument import wrong

SECRET_VARIABLES = "DISTOP_KAFKA_"
"""Prefix of the environment variables that settings may refer to."""
SECRET_FOLDER = "DISTOP_KAFKA_SECRETS"
"""The environment variable with the folder of the files that settings may refer to."""
MAX_SECRET_BYTES = 64 << 10

SECRETS = frozenset({"sasl.password", "sasl.oauthbearer.client.secret", "ssl.key.password"})
SETTINGS = SECRETS | {
    "broker.address.family",
    "check.crcs",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "fetch.wait.max.ms",
    "group.id",
    "receive.message.max.bytes",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
}
"""Settings allowed in ``config``."""

FILES = frozenset({"sasl.kerberos.keytab", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"})
"""Those that name files."""

Config = Mapping[str, Any]


def check_config(config: Config) -> None:
    """Refuse settings that are not allowed, and literal secrets.

    Raises
    ------
    InvalidArgument
    """
    for name, value in config.items():
        if name not in SETTINGS:
            raise wrong(
                "config", f"{name!r} is not an allowed setting", f"known: {', '.join(sorted(SETTINGS))}"
            )
        is_reference = isinstance(value, dict)
        if name in SECRETS and not is_reference:
            raise wrong(
                "config",
                f"{name} is a secret, but arguments are stored where operators can read them",
                f'refer to it: {{"env": "{SECRET_VARIABLES}PASSWORD"}} or {{"file": "password"}}',
            )
        if is_reference and name not in SECRETS:
            raise wrong(
                "config", f"{name} is not a secret: the client shows its value in errors and in its log"
            )
        if is_reference:
            _check_reference(name, value)


def _check_reference(name: str, reference: Mapping[str, str]) -> None:
    match dict(reference):
        case {"env": variable, **others} if not others:
            if not variable.startswith(SECRET_VARIABLES):
                raise wrong(
                    "config",
                    f"{name}: the variable {variable!r} may not be used",
                    f"only those whose names begin with {SECRET_VARIABLES}",
                )
        case {"file": file, **others} if not others:
            if not file or "/" in file or file in (".", ".."):
                raise wrong(
                    "config",
                    f"{name}: {file!r} is not the name of a file alone",
                    f"files must be in the folder that {SECRET_FOLDER} names",
                )
        case _:
            raise wrong("config", f'{name}: a reference is {{"env": NAME}} or {{"file": NAME}}')


def resolved(config: Config) -> dict[str, str | Secret]:
    """The settings for the client after revealing secrets, with those of this process's
    environment.

    Raises
    ------
    InvalidArgument
        One does not exist.
    """
    check_config(config)
    return {name: _resolved(name, value) for name, value in config.items()}


def _resolved(name: str, value: Any) -> str | Secret:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, dict):
        return str(value)
    if "env" in value:
        found = os.environ.get(str(value["env"]))
        if found is None:
            raise wrong(
                "config",
                f"{name}: the environment has no {value['env']}",
                "set it for coordinators, executors and Spark's workers",
            )
        return Secret(found)
    folder = os.environ.get(SECRET_FOLDER, "")
    if not folder:
        raise wrong("config", f"{name}: {SECRET_FOLDER} is not set")
    try:
        with (Path(folder) / str(value["file"])).open("rb") as file:
            return Secret(file.read(MAX_SECRET_BYTES).decode().rstrip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise wrong("config", f"{name}: {value['file']} cannot be read: {error}") from None


def consumer_settings(servers: str, config: Config) -> dict[str, Any]:
    """All settings of a consumer that reads by offset, commits nothing and belongs to no group.

    Raises
    ------
    InvalidArgument
    """
    bounds = {
        # Limit of the data that waits here, whatever is written to the topic; a single larger record still
        # passes.
        "queued.max.messages.kbytes": 16 << 10,
        "fetch.max.bytes": 8 << 20,
        "fetch.message.max.bytes": 4 << 20,
        # The client requires a name; nothing is stored under it.
        "group.id": "distop",
        "client.id": "distop",
        "socket.nagle.disable": True,
        # The records to read exist already. A longer request would only delay the next partition's.
        "fetch.wait.max.ms": 50,
        # Its log messages about missing brokers, ten times a second, are also reported to a callback.
        "log_level": 2,
    }
    ours = {
        "bootstrap.servers": servers,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A missing offset is an error, never silently another one.
        "auto.offset.reset": "error",
        # Markers of transactions and compacted records have offsets, too: only the end of the partition shows
        # them.
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        # A slow consumer does not leave a group, since there is none.
        "max.poll.interval.ms": 86_400_000,
    }
    given = resolved(config)
    # The client would send them its settings, with the secrets that it was given.
    for server in servers.split(","):
        check_source(f"kafka://{server.strip()}")
    if tokens := given.get("sasl.oauthbearer.token.endpoint.url"):
        check_source(str(tokens))
    for name in sorted(FILES & given.keys()):
        _check_file(name, str(given[name]))
    return {**bounds, **given, **ours}


def _check_file(name: str, path: str) -> None:
    """A caller that names a key uses it: keys of this host are not for callers, nor other kinds of paths."""
    if path == "probe":
        return  # librdkafka's name for the CAs of the system
    if not os.path.isabs(path):
        raise wrong("config", f"{name}: {path!r} is not an absolute path")
    folder = os.environ.get(SECRET_FOLDER, "")
    if not folder or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        check_source(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise wrong("config", f"{name}: {path!r} is not a file")
