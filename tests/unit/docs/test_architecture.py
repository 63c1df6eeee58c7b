"""docs/architecture.md shows the rooms as they are, and leads from the checklist to code and tests."""

import ast
import re
import runpy
from importlib.util import find_spec

from distop.operations import Registry
from support.repository import ROOT, TESTS

DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()
CHECKLIST = {"O": 29, "C": 19, "P": 16, "B": 15, "U": 5, "G": 7, "S": 6, "E": 5, "H": 7, "V": 6, "A": 11}
"""How many lines each group of it has that is built."""

PRODUCT = sorted(path.parent for path in (ROOT / "src" / "distop").glob("*/__init__.py"))
ROOMS = sorted(
    f"{folder.name}/{path.parent.name}" for folder in PRODUCT for path in folder.glob("*/__init__.py")
)


def section(name: str) -> list[list[str]]:
    """The rows of the table between the marks ``name:begin`` and ``name:end``."""
    text = DOCUMENT.partition(f"<!-- {name}:begin -->")[2].partition(f"<!-- {name}:end -->")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


def docstrings(file: str, test: str) -> str | None:
    """What a test and its module say of themselves; ``None``: there is no such test."""
    for path in TESTS.rglob(file):
        module = ast.parse(path.read_text())
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test:
                return f"{ast.get_docstring(node)} {ast.get_docstring(module)}"
    return None


def test_every_line_of_the_checklist_leads_to_a_module_and_a_test_that_names_it() -> None:
    rows = section("checklist")
    lines = [f"{group}{number}" for group, count in CHECKLIST.items() for number in range(1, count + 1)]
    assert [row[0] for row in rows] == lines
    for line, _, module, shown in rows:
        assert (ROOT / module).is_file(), f"{line}: there is no {module}"
        said = docstrings(*shown.split("::"))
        assert said is not None, f"{line}: there is no test {shown}"
        assert re.search(rf"\b{line}\b", said), f"the docstring of {shown} does not name {line}"


def test_twenty_questions_are_answered_by_modules_that_define_the_answer() -> None:
    rows = section("questions")
    assert len({question for question, _, _ in rows}) == 20
    for question, module, name in rows:
        defined = [getattr(node, "name", "") for node in ast.parse((ROOT / module).read_text()).body]
        assert name in defined, f"{question} {module} does not define {name}"


def test_every_room_is_described_and_every_module_that_is_named_exists() -> None:
    assert sorted(room for room, _ in section("rooms")) == ROOMS
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", DOCUMENT))
    assert named
    assert not [path for path in sorted(named) if not (ROOT / path).is_file()]


def test_the_picture_shows_the_rooms_and_imports_as_they_are() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "rooms.py"))["picture"]()
    assert (ROOT / "docs" / "rooms.svg").read_text() == drawn, "it is old: run make rooms"


def test_every_room_says_what_is_in_it() -> None:
    for room in [folder.name for folder in PRODUCT] + ROOMS:
        assert ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())), room


def test_images_are_made_of_every_folder() -> None:
    let_in = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{folder.name}" for folder in PRODUCT if folder.is_symlink()} <= set(let_in)


CORE = (
    *("errors", "process", "proto", "metastore", "operations", "commit"),
    *("lake", "catalog", "sources", "coordinator", "executor"),
)
"""The folders that know no operation type by its name; a client or a command is for some of them."""

NO_TYPES = {
    ("metastore/etcd/watch.py", "delete"): "what etcd says of a key",
    ("coordinator/api/published.py", "compact"): "what a call does to watermarks",
    **{
        (
            "coordinator/web/actions.py",
            name,
        ): "what the page has a button for, as the command line has commands"
        for name in ("compact", "expire_snapshots", "remove_orphans", "rollback")
    },
    ("lake/iceberg/takeover.py", "write"): "the prefix of the folders that tasks of Spark write to",
    ("operations/noop.py", "noop"): "the type itself: it needs no storage, and shows that distop works",
}
"""Texts of the core that equal the name of a type, and why each is there."""


def test_the_core_knows_no_type_of_operations_by_its_name() -> None:
    """A type says what it needs by attributes that any type may have."""
    types = set(Registry(()).names())
    found = {
        (path.relative_to(folder.parent).as_posix(), node.value)
        for folder in PRODUCT
        if folder.name in CORE
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in types
    }
    assert found == NO_TYPES.keys()


def test_modules_that_types_preload_exist() -> None:
    registry = Registry(())
    for kind in map(registry.get, registry.names()):
        assert all(map(find_spec, kind.preloads)), kind.type
