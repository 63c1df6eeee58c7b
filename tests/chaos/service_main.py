"""A coordinator or an executor as `distop` runs it, but less patient: ``chaos.service_main ROLE ...``."""

import ctypes
import os
import signal
import sys

from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.service import CoordinatorConfig
from distop.coordinator.service import run as run_coordinator
from distop.executor.runner.options import RunnerOptions
from distop.executor.runner.service import ExecutorConfig
from distop.executor.runner.service import run as run_executor
from distop.metastore.etcd.config import EtcdConfig
from distop.process.logs import configure


def main(role: str, where: str, ttl_s: str) -> int:
    """``where``: the address to listen on, or the Spark master."""
    end_with_parent()
    configure()
    etcd = EtcdConfig.from_env()
    if role == "coordinator":
        # A leader resigns soon, so that leaderships begin and end all the time.
        return run_coordinator(
            CoordinatorConfig(
                etcd=etcd,
                listen=where,
                catalog=os.environ["CHAOS_CATALOG"],
                lease_ttl_s=int(ttl_s),
                linger_s=0.5,
                identity=IdentityConfig(token_file=os.environ["CHAOS_TOKENS"]),
            )
        )
    options = RunnerOptions(lease_ttl_s=int(ttl_s), resync_s=2.0, rest_s=2.0)
    return run_executor(ExecutorConfig(etcd=etcd, master=where, slots=2, runner=options))


def end_with_parent() -> None:
    """A harness that is killed leaves nothing behind that runs for ever."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
