"""A program that uses distop may start other programs, and Spark."""

import os
import sys

import pytest

from support.processes import captured

pytestmark = pytest.mark.process

PROGRAM = """
import asyncio, importlib, os, sys
importlib.import_module(sys.argv[1])
import grpc

async def calls():
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        while True:
            try:
                await channel.unary_unary("/a/b")(b"", timeout=2)
            except grpc.RpcError:
                pass

async def main():
    tasks = [asyncio.create_task(calls()) for _ in range(4)]
    for _ in range(30):
        await asyncio.sleep(0.01)
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    os._exit(0)

asyncio.run(main())
"""


def handled(module: str, **environment: str) -> bool:
    """Whether gRPC's handlers for forks ran in a program that has imported this module of distop's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", PROGRAM, module]
    ran = captured(command, env=inherited | environment, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return "fork() handlers" in ran.stderr


@pytest.mark.parametrize("module", ["distop.client", "distop.catalog.catalog"])
def test_grpc_leaves_the_children_of_a_program_alone(module: str) -> None:
    """G2: else some of them abort, such as Spark's JVM, and calls of the program hang (grpc/grpc#43055)."""
    assert not handled(module)


def test_a_program_that_wants_the_handlers_has_them() -> None:
    assert handled("distop.client", GRPC_ENABLE_FORK_SUPPORT="1")
