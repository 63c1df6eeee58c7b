"""The thread that renews a lease, closed at the worst moment."""

import sys

from support.processes import captured

CLOSED_BEFORE_ITS_FIRST_CALL = """
import socket
import threading
from aetcd.rpc import rpc_pb2_grpc
from distop.errors import EtcdUnavailable
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import Renewal

opened, closing = threading.Event(), threading.Event()
prepare = rpc_pb2_grpc.LeaseStub

def prepare_late(channel):
    opened.set()
    closing.wait()
    return prepare(channel)

def keep(renewal):
    try:
        renewal.renew(60.0)
    except EtcdUnavailable as error:
        print(error.message.rpartition(": ")[2])

rpc_pb2_grpc.LeaseStub = prepare_late
silent = socket.create_server(("127.0.0.1", 0))
renewal = Renewal(EtcdConfig(endpoints=(f"127.0.0.1:{silent.getsockname()[1]}",)), 1, keep)
opened.wait()
threading.Timer(0.2, closing.set).start()
renewal.close()
renewal._thread.join()
"""


def test_closing_it_before_its_first_call_does_not_end_the_process() -> None:
    """gRPC crashes when it prepares a call on a closed channel."""
    program = [sys.executable, "-X", "faulthandler", "-c", CLOSED_BEFORE_ITS_FIRST_CALL]
    ended = captured(program, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "Locally cancelled by application!\n"), ended.stderr
