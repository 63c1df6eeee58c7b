"""The properties of a pyiceberg catalog that say how to reach etcd.

``etcd.endpoints`` (or ``uri``), ``etcd.prefix`` and so on override the environment.
"""

from __future__ import annotations

from collections.abc import Mapping

from distop.errors import InvalidArgument
from distop.metastore.etcd.config import EtcdConfig

_OPTIONS = {
    "etcd.endpoints": "endpoints",
    "etcd.prefix": "prefix",
    "etcd.user": "user",
    "etcd.password": "password",
    "etcd.password-file": "password_file",
    "etcd.ca-cert": "ca_cert",
    "etcd.cert": "cert",
    "etcd.key": "key",
    "etcd.timeout": "timeout_s",
}

_SCHEME = "etcd://"


def etcd_config(properties: Mapping[str, str]) -> EtcdConfig:
    """The configuration of etcd from a catalog's properties, and from the environment for the rest.

    Raises :class:`~distop.errors.InvalidArgument` for an unknown property ``etcd.*``.
    """
    given = {name: value for name, value in properties.items() if name.startswith("etcd.") and value}
    if unknown := sorted(given.keys() - _OPTIONS.keys()):
        raise InvalidArgument(
            f"unknown property {unknown[0]!r}; known are {', '.join(_OPTIONS)}", details={"field": unknown[0]}
        )
    if uri := properties.get("uri"):
        if given.setdefault("etcd.endpoints", uri) != uri:
            raise InvalidArgument("uri and etcd.endpoints differ", details={"field": "uri"})
        given["etcd.endpoints"] = uri.removeprefix(_SCHEME)
    return EtcdConfig.of({_OPTIONS[name]: str(value) for name, value in given.items()})
