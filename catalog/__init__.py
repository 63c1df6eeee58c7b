"""The pyiceberg catalog whose pointers live in etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distop.catalog.catalog import EtcdCatalog

__all__ = ["EtcdCatalog"]


def __getattr__(name: str) -> Any:
    # Imported on demand: coordinators use the pointers without loading pyiceberg.
    if name == "EtcdCatalog":
        from distop.catalog.catalog import EtcdCatalog

        return EtcdCatalog
    raise AttributeError(name)
