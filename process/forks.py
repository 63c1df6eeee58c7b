"""gRPC leaves forks of this process alone. Imported before gRPC is, which reads the setting then, once.

PySpark forks to start its JVM, and uvloop to start any process. gRPC's handlers for forks make some of these
children abort before they become another program, and calls of the parent hang (grpc/grpc#43055). They are
for calls in a child that stays the same program, which distop refuses anyway (``check_not_forked``).
A program that wants them sets ``GRPC_ENABLE_FORK_SUPPORT=1`` itself.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
