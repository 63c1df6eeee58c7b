"""Where the repository is, and the product's code in it."""

import ast
import functools
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def product_sources() -> list[Path]:
    """Every module of the packages, in every room; as paths below ``src/distop``."""
    return sorted((ROOT / "src" / "distop").glob("*/**/*.py"))


@functools.cache
def reference() -> dict[str, Any]:
    """The functions that make the reference of the documentation."""
    return runpy.run_path(str(ROOT / "docs" / "reference.py"))


@functools.cache
def syntax(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module; several tests look at those of the whole product."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def points() -> dict[str, str]:
    """All crash points of the product, each with its module, sorted by name."""
    modules: dict[str, str] = {}
    for path in product_sources():
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for node in syntax(path):
            match node:
                case ast.Call(func=ast.Name(id="reached"), args=[ast.Constant(value=str(name))]):
                    modules.setdefault(name, module)
    return dict(sorted(modules.items()))
