"""A coordinator process for tests: ``python -m support.services.coordinator_main HOST:PORT TTL_S [CATALOG]``.

etcd and operation types come from the environment; the log goes to standard error, one line an event.
"""

import sys

from distop.coordinator.service import CoordinatorConfig, run
from distop.metastore.etcd.config import EtcdConfig
from distop.process.logs import configure


def main(listen: str, ttl_s: str, catalog: str | None = None) -> int:
    configure()
    etcd = EtcdConfig.from_env()
    return run(CoordinatorConfig(etcd=etcd, listen=listen, lease_ttl_s=int(ttl_s), catalog=catalog))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
