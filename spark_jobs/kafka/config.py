"""Settings of the Kafka client: which a caller may give, where secrets come from, which are ours.

What a caller gives is kept in etcd, where operators read it, and acts in processes that have rights of their
own. So settings are taken from a list, which has none that runs a program or loads a library. A secret is
referred to, and only what was put there for this purpose can be: otherwise everyone who may start an
operation could have any variable of the coordinator sent to a server of his own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distop.commit.files.allowed import check_source
from distop.proto.secret import Secret
from distop.spark_jobs.kafka.argument import wrong

SECRET_VARIABLES = "DISTOP_KAFKA_"
"""Names of environment variables that may be referred to begin with this."""
SECRET_FOLDER = "DISTOP_KAFKA_SECRETS"
"""The environment variable that names the folder of files that may be referred to."""
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
"""What may be given in ``config``."""

FILES = frozenset({"sasl.kerberos.keytab", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"})
"""Of them those that name files."""

Config = Mapping[str, Any]


def check_config(config: Config) -> None:
    """Refuse settings that are not to be given, and secrets that stand there themselves.

    Raises
    ------
    InvalidArgument
    """
    for name, value in config.items():
        if name not in SETTINGS:
            raise wrong(
                "config", f"{name!r} is no setting that may be given", f"known: {', '.join(sorted(SETTINGS))}"
            )
        is_reference = isinstance(value, dict)
        if name in SECRETS and not is_reference:
            raise wrong(
                "config",
                f"{name} is a secret, and arguments are kept where operators read them",
                f'refer to it: {{"env": "{SECRET_VARIABLES}PASSWORD"}} or {{"file": "password"}}',
            )
        if is_reference and name not in SECRETS:
            raise wrong("config", f"{name} is no secret: the client shows its value in errors and in its log")
        if is_reference:
            _check_reference(name, value)


def _check_reference(name: str, reference: Mapping[str, str]) -> None:
    match dict(reference):
        case {"env": variable, **others} if not others:
            if not variable.startswith(SECRET_VARIABLES):
                raise wrong(
                    "config",
                    f"{name}: the variable {variable!r} may not be referred to",
                    f"only those whose names begin with {SECRET_VARIABLES}",
                )
        case {"file": file, **others} if not others:
            if not file or "/" in file or file in (".", ".."):
                raise wrong(
                    "config",
                    f"{name}: {file!r} is not the name of a file alone",
                    f"files lie in the folder that {SECRET_FOLDER} names",
                )
        case _:
            raise wrong("config", f'{name}: a reference is {{"env": NAME}} or {{"file": NAME}}')


def resolved(config: Config) -> dict[str, str | Secret]:
    """The settings as the client takes them once they are revealed, with the secrets of this process's
    environment.

    Raises
    ------
    InvalidArgument
        One is not there.
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
        raise wrong("config", f"{name}: {SECRET_FOLDER} does not say where secrets are")
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
        # What waits in this process to be read, whatever is written to the topic; a single larger record
        # still comes through.
        "queued.max.messages.kbytes": 16 << 10,
        "fetch.max.bytes": 8 << 20,
        "fetch.message.max.bytes": 4 << 20,
        # The client insists on a name; nothing is kept under it.
        "group.id": "distop",
        "client.id": "distop",
        "socket.nagle.disable": True,
        # What is to be read is there already. A longer request only holds up that for the next partition.
        "fetch.wait.max.ms": 50,
        # What it would say of brokers that are away, ten times a second, is reported to a callback as well.
        "log_level": 2,
    }
    ours = {
        "bootstrap.servers": servers,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # An offset that is not there is an error, never silently another one.
        "auto.offset.reset": "error",
        # Markers of transactions and compacted records have offsets, too: only the end tells of them.
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        # There is no group that would have to be left by a consumer that is slow.
        "max.poll.interval.ms": 86_400_000,
    }
    given = resolved(config)
    # The client tells them who it is, with the secrets that it was given.
    for server in servers.split(","):
        check_source(f"kafka://{server.strip()}")
    if tokens := given.get("sasl.oauthbearer.token.endpoint.url"):
        check_source(str(tokens))
    for name in sorted(FILES & given.keys()):
        _check_file(name, str(given[name]))
    return {**bounds, **given, **ours}


def _check_file(name: str, path: str) -> None:
    """Whoever names a key uses it: one of this host's own is not for callers, nor what is no file at all."""
    if path == "probe":
        return  # librdkafka's word for the CAs of the system
    if not os.path.isabs(path):
        raise wrong("config", f"{name}: {path!r} is no absolute path")
    folder = os.environ.get(SECRET_FOLDER, "")
    if not folder or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        check_source(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise wrong("config", f"{name}: {path!r} is no file")
