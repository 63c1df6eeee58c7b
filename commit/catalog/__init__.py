"""The pyiceberg catalog whose pointers live in etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distop.commit.catalog.catalog import EtcdCatalog

__all__ = ["EtcdCatalog"]


def __getattr__(name: str) -> Any:
    # Only when it is asked for: coordinators use the pointers, and need not load pyiceberg for them.
    if name == "EtcdCatalog":
        from distop.commit.catalog.catalog import EtcdCatalog

        return EtcdCatalog
    raise AttributeError(name)
