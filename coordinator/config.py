"""The settings of a coordinator, and their limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.api.calls import Limits
from distop.coordinator.work.work import LIMIT_S
from distop.errors import InvalidArgument
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations.starting import BRIEFLY_S, REMEMBER_S
from distop.process.tls import TlsConfig, check_address


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig:
    """The settings of a coordinator."""

    etcd: EtcdConfig = field(default_factory=EtcdConfig)
    listen: str = "127.0.0.1:7070"
    """``host:port`` of the gRPC service; port 0 picks a free one."""
    web: str | None = None
    """``host:port`` of the page and of ``/metrics``; port 0 picks a free one, ``None`` leaves them out."""
    identity: IdentityConfig = field(default_factory=IdentityConfig)
    """How it identifies callers."""
    catalog: str | None = None
    """``host:port`` of the catalog for engines that use Iceberg's REST protocol; as ``web``."""
    warehouse: str | None = None
    """URL of the folder for tables that are created there without a location."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """How its connections are protected."""
    lease_ttl_s: int = 5
    """Time to live of its lease in seconds; a dead coordinator then loses its tables. etcd's minimum is 2."""
    linger_s: float = 5.0
    """Seconds a leader keeps a table that has no work."""
    call_timeout_s: float = LIMIT_S
    """Seconds that user code and the preparation of a commit may take without a heartbeat."""
    remember_requests_s: float = REMEMBER_S
    """Seconds for which request ids are remembered, from the start of their operation."""
    operations: tuple[str, ...] | None = None
    """Further operation types, ``module:Class``; ``None``: from DISTOP_OPERATIONS."""
    limits: Limits = field(default_factory=Limits)
    """Limits for callers."""

    def __post_init__(self) -> None:
        for name, address in (("listen", self.listen), ("web", self.web), ("catalog", self.catalog)):
            if address is None:
                continue
            check_address(name, address)
            self.tls.check(name, address)
        if not self.call_timeout_s > 0:
            raise InvalidArgument(
                "the call timeout must be positive seconds", details={"field": "call_timeout_s"}
            )
        if not self.remember_requests_s >= BRIEFLY_S:
            raise InvalidArgument(
                f"request ids must be remembered for at least {BRIEFLY_S:.0f} s",
                details={"field": "remember_requests_s"},
            )
        if self.lease_ttl_s < 2:
            raise InvalidArgument(
                f"a lease of {self.lease_ttl_s} s is below etcd's minimum of 2 s",
                details={"field": "lease_ttl_s"},
            )
