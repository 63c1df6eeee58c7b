"""Types that are used by several threads at once for the first time."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator

from support.repository import ROOT, product_sources, syntax

PLAIN = {"dict", "list", "str", "int", "bytes", "object", "Any", "None", "msgspec", "Raw"}
"""What msgspec knows from the start."""

RACE = """
import sys, threading, types
import msgspec
from distop.metastore.records.record import convert

SOURCE = '''
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct):
    x: int = 0
    y: dict[str, list[int]] = {}
class Outer(msgspec.Struct):
    many: list[Inner] = []
    one: Inner | None = None
'''
sys.setswitchinterval(1e-6)
for number in range(300):
    module = types.ModuleType(f"m{number}")
    sys.modules[module.__name__] = module
    exec(SOURCE, module.__dict__)
    together = threading.Barrier(4)

    def use():
        together.wait()
        found = convert({"many": [{"x": 1}], "one": {"y": {"k": [1]}}}, module.Outer)
        assert found.one.y == {"k": [1]}
        done.append(found)

    done = []
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4
"""


def test_a_type_may_be_used_by_many_threads_from_the_start() -> None:
    ended = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_all_types_are_made_ready() -> None:
    """One that is not would end a process once in a thousand starts."""
    unready = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in product_sources()
        if not path.match("records/record.py")
        for node in types_of(syntax(path))
        if names_in(node) - PLAIN and not (isinstance(node, ast.Call) and names_in(node.func) == {"ready"})
    ]
    assert unready == []


def types_of(module: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """What functions hand to msgspec as a type. What a module does while it is imported, it does alone."""
    functions = [node for node in module if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in (inner for function in functions for inner in ast.walk(function)):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("msgspec."):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        if called == "convert":
            yield node.args[1]
        elif called == "Decoder":
            yield node.args[0]
        elif called == "decode":
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "type")


def names_in(node: ast.expr) -> set[str]:
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names | {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
