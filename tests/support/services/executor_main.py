"""An executor process for tests: ``python -m support.services.executor_main MASTER TTL_S``.

etcd and operation types come from the environment; the log goes to standard error, one line an event.
"""

import sys

from distop.executor.runner.options import RunnerOptions
from distop.executor.runner.service import ExecutorConfig, run
from distop.metastore.etcd.config import EtcdConfig
from distop.process.logs import configure


def main(master: str, ttl_s: str) -> int:
    configure()
    options = RunnerOptions(lease_ttl_s=int(ttl_s), resync_s=2.0)
    # With its heartbeats Spark's driver brings up to date what it says of tasks.
    settings = {"spark.executor.heartbeatInterval": "1s"}
    config = ExecutorConfig(
        etcd=EtcdConfig.from_env(), master=master, settings=settings, slots=4, runner=options
    )
    return run(config)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
