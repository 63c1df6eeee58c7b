"""Services of a coordinator that run all their calls in one place, for tests of its parts."""

from typing import Any

from distop.coordinator.starting.services import Services
from distop.coordinator.work.work import Work
from distop.metastore.etcd.client import EtcdClient


def services_of(client: EtcdClient, work: Work, **others: Any) -> Services:
    """Services that run everything in ``work``; ``others``: further fields."""
    return Services(client=client, planning=work, publishing=work, answering=work, **others)
