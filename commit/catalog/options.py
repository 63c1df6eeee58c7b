"""The properties of a pyiceberg catalog that say how to reach etcd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distop.errors import InvalidArgument
from distop.metastore.etcd.config import EtcdConfig, split_endpoints

_OPTIONS = {
    "etcd.prefix": "prefix",
    "etcd.user": "user",
    "etcd.password": "password",
    "etcd.ca-cert": "ca_cert",
    "etcd.cert": "cert",
    "etcd.key": "key",
}


def etcd_config(properties: Mapping[str, str]) -> EtcdConfig:
    """How to reach etcd by a catalog's properties; by the environment if they do not say."""
    if not properties.get("etcd.endpoints"):
        return EtcdConfig.from_env()
    options: dict[str, Any] = {
        field: properties[name] for name, field in _OPTIONS.items() if properties.get(name)
    }
    if timeout := properties.get("etcd.timeout"):
        try:
            options["timeout_s"] = float(timeout)
        except ValueError:
            raise InvalidArgument(
                f"etcd.timeout={timeout!r} is no number", details={"field": "etcd.timeout"}
            ) from None
    return EtcdConfig(endpoints=split_endpoints(properties["etcd.endpoints"]), **options)
