"""A worker process for tests. Its arguments: SIDECAR_FOLDER ARG_FILE RUN_TOKEN."""

import sys
from pathlib import Path

from distop.executor.host.scratch import Scratch
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.sidecar.client import client_of_this_process
from distop.executor.task.task import TaskWork, run_task
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import decode
from distop.operations import Registry


def main(folder: str, arg_file: str, token: str) -> int:
    arg = decode(Path(arg_file).read_bytes(), OperationArg)
    sidecar_folder = SidecarFolder(Path(folder))
    work = TaskWork(
        operation=Registry().get(arg.type), arg=arg, run_token=int(token), scratch=Scratch(sidecar_folder)
    )
    client = client_of_this_process(sidecar_folder, EtcdConfig.from_env().to_env())
    run_task(client, work, arg.partition_names(), "w")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
