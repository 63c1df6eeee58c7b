"""Imported before anything imports gRPC: from here on this process may fork although it uses gRPC.

Spark's Python code forks to start a JVM, and uvloop to start any process. With gRPC's handlers for forks some
children abort before they become another program, and calls of the parent hang (grpc/grpc#43055). gRPC reads
the setting once, when it is imported; programs that this process starts are not to inherit it.
"""

import os
import sys

assert "grpc" not in sys.modules
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
import grpc  # noqa: E402, F401

del os.environ["GRPC_ENABLE_FORK_SUPPORT"]
