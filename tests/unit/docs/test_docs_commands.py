"""Every command line that the documentation shows is one that ``distop`` takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from support.command_lines import begins, leaves, parse, problem
from support.repository import ROOT, product_sources, syntax

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_ENDS = re.compile(r"[|<>&;]+")


def blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Commands in shell blocks and indented lines, and inline ones, which may lack arguments."""
    fenced = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    yield from ((block, True) for block in fenced)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from ((block, True) for block in re.findall(r"(?:^ {4}distop .*\n)+", rest, re.MULTILINE))
    for inline in re.findall(r"`(distop [^`]+)`", rest):
        yield " ".join(inline.split()), False


def commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """The words of each command line behind ``distop``, without what a shell does with its output.

    And whether the line is a whole one.
    """
    for block, whole in blocks(text):
        waiting = ""
        for line in block.splitlines():
            waiting += line.removesuffix("\\").strip() + (" " if line.endswith("\\") else "\n")
            try:
                words = shlex.split(waiting, comments=True)
            except ValueError:  # a quotation that goes on in the next line
                continue
            if line.endswith("\\"):
                continue
            waiting = ""
            if words[:1] == ["distop"] and words != ["distop", "is", "ready"]:
                end = next((at for at, word in enumerate(words) if _ENDS.fullmatch(word)), len(words))
                yield words[1:end], whole


def test_every_command_line_that_is_shown_is_understood() -> None:
    wrong = []
    for document in DOCUMENTS:
        for words, whole in commands(document.read_text()):
            if "..." in words:
                words = words[: words.index("...")]
            try:
                parse(words)
            except typer.Exit:  # --help
                pass
            except typer.TyperException as error:
                if not whole and re.search(r"^Missing|requires an argument", error.format_message()):
                    continue
                wrong.append(f"{document.name}: distop {shlex.join(words)}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)


def test_a_verb_that_is_named_without_distop_is_one_of_its_noun() -> None:
    """Such as `batch retry` in a table; nouns in the plural have none."""
    known = {tuple(path) for path, _ in leaves()}
    nouns = {path[0] for path in known if len(path) > 1}
    wrong = [
        f"{document.name}: {noun} {verb}"
        for document in DOCUMENTS
        for noun, verb in re.findall(r"`([a-z]+) ([a-z-]+)\b[^`]*`", document.read_text())
        if (noun in nouns or noun.removesuffix("s") in nouns) and (noun, verb) not in known
    ]
    assert not wrong, "\n".join(wrong)


def texts(path: Path) -> Iterator[str]:
    """The strings of a module, with a placeholder for each value; any other file as it is."""
    if path.suffix != ".py":
        yield path.read_text().replace('", "', " ").replace('", ', " ")
        return
    parts = set[ast.AST]()
    for node in syntax(path):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            yield "".join(
                str(value.value) if isinstance(value, ast.Constant) else "NAME" for value in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.value


def test_every_command_line_in_a_message_a_docstring_or_a_page_is_understood() -> None:
    sources = [path for path in product_sources() if "distop " in path.read_text()]
    sources += (ROOT / "coordinator" / "web").rglob("*.html")
    sources += (path for path in (ROOT / "deploy").rglob("*") if path.suffix in (".yaml", ".txt", ".tpl"))
    wrong = [
        f"{path.name}: {text[found.start() :][:90]!r}: {why}"
        for path in sources
        for text in texts(path)
        for found in re.finditer(r"(?<![\w./-])distop(?=\s+([a-z-]+))", text)
        if begins(found[1]) and (why := problem(text[found.end() :]))
    ]
    assert not wrong, "\n".join(wrong)


FOREIGN = {
    *("--auto-compaction-retention", "--quota-backend-bytes", "--endpoints"),  # etcd's and etcdctl's
    *("--bump-revision", "--mark-compacted"),  # etcdutl's
    *("--py-files", "--help", "--version"),
}


def messages(path: Path) -> Iterator[str]:
    """The texts of the errors that a module raises, and their hints."""
    for node in syntax(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            given = [keyword.value for keyword in node.keywords if keyword.arg in ("hint", "message")]
            given += node.args if name[0].isupper() or name == "invalid" else []
            for part in (part for value in given for part in ast.walk(value)):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_an_option_that_a_message_names_is_one_of_a_command() -> None:
    """U3: and none is the field of an argument, where its verb has an option for it."""
    options = [option for _, command in leaves() for option in command.params]
    known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    wrong = [
        f"{path.name}: {text!r} names {option}"
        for path in product_sources()
        if path.suffix == ".py"
        for text in messages(path)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*(?: [a-z_]+=)?", text)
        if option.rstrip("-") not in known | FOREIGN
    ]
    assert not wrong, "\n".join(wrong)


def test_every_piece_of_python_is_python() -> None:
    for document in DOCUMENTS:
        for piece in re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
            compile(piece, document.name, "exec")


def test_a_wrong_command_line_is_found() -> None:
    text = "```sh\ndistop table create t --locaton /x \\\n  --schema 'a: int'\n```\nand `distop lss`.\n"
    found = list(commands(text))
    words = ["table", "create", "t", "--locaton", "/x", "--schema", "a: int"]
    assert found == [(words, True), (["lss"], False)]
    for words, _ in found:
        with pytest.raises(typer.TyperException):
            parse(words)


def test_the_help_of_each_command_has_an_example_that_is_understood() -> None:
    without = []
    for path, command in leaves():
        examples = re.findall(r"Example: distop (.*)$", command.help or "", re.MULTILINE)
        for example in examples:
            words = shlex.split(example)
            assert words[: len(path)] == path, example
            parse(words)
        if not examples:
            without.append(" ".join(path))
    assert not without
