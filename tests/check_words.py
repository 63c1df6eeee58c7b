"""Finds private words in names, docstrings, messages, comments and the documentation, for ``make lint``.

``words.toml`` lists them, and what to write instead. A docstring of one or two words is refused too ("The
same.", "Read it."): it says less than the name above it.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = tomllib.loads(Path(__file__).with_name("words.toml").read_text())
TEXT = re.compile(rf"\b({'|'.join(LIST['text'])})\b", re.IGNORECASE)
DOCUMENTATION = ["docs/*.md", "README.md", "CONTRIBUTING.md"]
SHORTEST_DOCSTRING = 3
"""The words that a docstring has at least."""

Problem = tuple[int, str]
"""A line, and what is wrong there."""


def main() -> int:
    """Print each problem with its file and line; return how many there are, at most 1 for the shell."""
    count = 0
    for path in _files():
        text = (ROOT / path).read_text()
        for line, problem in sorted(set(problems(text) if path.endswith(".py") else in_text(text, 1))):
            print(f"{path}:{line}: {problem}")
            count += 1
    if count:
        print(f"{count} words to replace: tests/words.toml")
    return min(count, 1)


def _files() -> list[str]:
    modules = [f"{folder}/*.py" for folder in LIST["folders"]]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *modules, *DOCUMENTATION],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return [path for path in listed if "_pb2" not in path]


def problems(source: str) -> Iterator[Problem]:
    """The problems of a Python module."""
    tree = ast.parse(source)
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        for name in _names(node):
            if id(node) in fields and name in LIST["fields"]:
                continue
            yield from in_name(name, getattr(node, "lineno", 1))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from in_text(node.value, node.lineno)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            words = str(node.value.value).split()
            if isinstance(node.value.value, str) and len(words) < SHORTEST_DOCSTRING:
                yield node.lineno, f"docstring {node.value.value!r}: write a sentence, or nothing"
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from in_text(token.string, token.start[0])


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a node defines; those that it only uses, such as fields of messages, are not its own."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.arg(arg=name) | ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name)):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
            yield name
        case ast.alias(asname=str(name)):
            yield name


def in_name(name: str, line: int) -> Iterator[Problem]:
    """The problems of a name."""
    if name in LIST["prescribed"]:
        return
    if better := LIST["names"].get(name.strip("_").lower()):
        yield line, f"name {name!r}: write {better}"
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name):
        if better := LIST["words_of_names"].get(word.lower()):
            yield line, f"name {name!r}: write {better}"


def in_text(text: str, line: int) -> Iterator[Problem]:
    """The problems of a text that begins on this line."""
    for match in TEXT.finditer(text):
        word = match[1].lower()
        yield line + text.count("\n", 0, match.start()), f"{word!r}: write {LIST['text'][word]}"


if __name__ == "__main__":
    sys.exit(main())
