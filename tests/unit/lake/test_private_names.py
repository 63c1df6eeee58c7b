"""Private names of libraries are used in two modules: one of them loads Arrow."""

import ast
from collections.abc import Iterable, Iterator

from support.repository import ROOT, product_sources, syntax

HOMES = ("src/distop/lake/pyiceberg_private.py", "src/distop/lake/pyiceberg_arrow.py")
OTHERS = {
    "_PARTITION_EOF": "confluent_kafka: public, for all that its name looks like",
    "_AUTO_OFFSET_RESET": "confluent_kafka: the same",
    "_jvm": "pyspark has no public way to the JVM",
    "_jsc": "pyspark: the same",
    "_jsparkSession": "pyspark: the same",
    "_exit": "the standard library's os._exit",
}
"""Private names of other libraries."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that a module gives to something of its own, also as attributes."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def used(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Private names that a module takes from somewhere."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if is_private(alias.name))


def test_only_these_modules_use_private_names_of_pyiceberg_and_fsspec() -> None:
    sources = [path for path in product_sources() if "_pb2" not in path.name]
    modules = {str(path.relative_to(ROOT)): syntax(path) for path in sources}
    for home in HOMES:
        assert set(used(modules.pop(home))), "the rule finds what it is to find"
    ours = {name for nodes in modules.values() for name in defined(nodes)}
    foreign = {name: path for path, nodes in modules.items() for name in used(nodes) if name not in ours}
    assert foreign.keys() <= OTHERS.keys(), f"move these to one of {HOMES}: {foreign}"
