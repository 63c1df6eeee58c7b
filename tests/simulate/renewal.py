"""The thread that renews a lease, as a task: the simulation has no threads.

The product's own function runs, in which every call of the :class:`Renewal` it is given is awaited.
"""

import ast
import asyncio
import inspect
import sys
import textwrap
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any

from aetcd.rpc import rpc_pb2

from simulate.network import Network


class Renewal:
    """In place of the product's: see there."""

    def __init__(self, network: Network, config: Any, lease: int, keep: Any) -> None:
        self._network, self._lease = network, lease
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(awaiting(keep.__func__)(keep.__self__, self))

    async def pause(self, seconds: float) -> bool:
        """Wait for this long; whether to continue."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stop.wait()
        except TimeoutError:
            return True
        return False

    async def renew(self, timeout_s: float) -> int:
        """Seconds that the lease lives from now on."""
        request = rpc_pb2.LeaseKeepAliveRequest(ID=self._lease)
        return int((await self._network.call("LeaseKeepAlive", request, timeout_s)).TTL)

    def close(self) -> None:
        self._stop.set()


@lru_cache
def awaiting(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A method as a coroutine function that awaits each call of a method of its last parameter."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    method = tree.body[0]
    assert isinstance(method, ast.FunctionDef)
    waited = _Awaiting(method.args.args[-1].arg).visit(method)
    tree.body[0] = ast.AsyncFunctionDef(
        **{name: getattr(waited, name) for name in (*waited._fields, *waited._attributes)}
    )
    namespace: dict[str, Any] = {}
    names = vars(sys.modules[function.__module__])
    exec(compile(tree, inspect.getfile(function), "exec"), names, namespace)
    made: Callable[..., Coroutine[Any, Any, Any]] = namespace[method.name]
    return made


class _Awaiting(ast.NodeTransformer):
    def __init__(self, parameter: str) -> None:
        self._parameter = parameter

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Name(id=name)) if name == self._parameter:
                return ast.copy_location(ast.Await(value=node), node)
        return node
