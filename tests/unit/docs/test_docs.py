"""What the documentation lists is what the code has: nothing more, nothing less."""

import functools
import importlib
import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import msgspec
import pytest
import yaml

from distop.cli.output.exits import EPILOG
from distop.coordinator.doctor.findings import SEVERITIES
from distop.executor.checking.spark_setup import REMEDIES
from distop.operations.registry import GROUP, Registry
from distop.sources.kafka.ranges import KafkaArgument
from distop.spark_jobs.compact.argument import CompactArgument
from distop.spark_jobs.delete.operation import DeleteArgument
from distop.spark_jobs.ingest.argument import IngestArgument
from support.metrics import families
from support.repository import ROOT, product_sources, reference

PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
REMEDY = "correct the document"


def section(document: str, name: str) -> str:
    """The text between the marks ``name:begin`` and ``name:end`` of a document."""
    text = (ROOT / document).read_text()
    found = re.search(rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", text, re.DOTALL)
    assert found, f"{document} lacks its section {name}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_error_is_documented_with_its_exit_code_and_its_meaning() -> None:
    errors = reference()["errors"]()
    known = {(e.code, str(e.exit_code), "yes" if e.retryable else "", e.meaning) for e in errors}
    documented = [tuple(row) for row in rows(section("docs/operating.md", "errors"))]
    assert set(documented) == known, REMEDY
    assert len(documented) == len(known)


def test_every_finding_of_the_doctor_is_documented() -> None:
    rooms = [ROOT / "coordinator" / name for name in ("doctor", "recovery")]
    sources = "".join(path.read_text() for room in rooms for path in room.glob("*.py"))
    others = {"NOSPACE", "CORRUPT", "PAUSED", "BACKUP_DAMAGED"}
    used = set(re.findall(r'"([A-Z]{2,}(?:_[A-Z]+)*)"', sources)) - others
    text = (ROOT / "docs" / "operating.md").read_text().partition("## The doctor")[2].partition("\n## ")[0]
    documented = {name for row in rows(text) for name in re.findall(r"[A-Z]{2,}(?:_[A-Z]+)*", row[0])}
    assert documented == used == set(SEVERITIES), REMEDY


def test_every_finding_about_workers_is_documented() -> None:
    documented = [row[0] for row in rows(section("docs/deploying.md", "worker-findings"))]
    assert sorted(documented) == sorted(REMEDIES), REMEDY


def test_every_exit_code_is_documented() -> None:
    documented = rows(section("docs/operating.md", "exit-codes"))
    assert ", ".join(f"{code} {meaning}" for code, meaning in documented) in EPILOG, REMEDY
    assert len(documented) == EPILOG.count(",") + 1


def test_every_environment_variable_is_documented() -> None:
    sources = [*product_sources(), ROOT / "deploy" / "setup.sh"]
    used = {name for path in sources for name in re.findall(r"\bDISTOP_[A-Z_]+\b", path.read_text())}
    text = (ROOT / "docs" / "operating.md").read_text()
    documented = {
        name
        for row in re.findall(r"^\| (`DISTOP_.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"DISTOP_[A-Z_]+", row)
    }
    assert documented == used, REMEDY


def test_what_runs_beside_what_is_documented() -> None:
    documented = {
        row[0]: set(re.findall(r"`(\w+)`", f"`{row[1]}`"))
        for row in rows(section("docs/operating.md", "side-by-side"))
    }
    registry = Registry()
    provisioned = [entry.name for entry in entry_points(group=GROUP)]
    allowed = {
        name: {one for one in provisioned if one != name and registry.compatible(registry.get(name), one)}
        for name in provisioned
    }
    assert documented == allowed, REMEDY


@pytest.mark.parametrize(
    ("page", "heading", "argument"),
    [
        ("ingest", "The argument", IngestArgument),
        ("sources/kafka", "Kafka", KafkaArgument),
        ("maintenance", "compact", CompactArgument),
        ("maintenance", "delete", DeleteArgument),
    ],
)
def test_every_field_of_an_argument_is_documented(page: str, heading: str, argument: type) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text().partition(f"# {heading}")[2].partition("\n## ")[0]
    fields = {field.encode_name for field in msgspec.structs.fields(argument)}
    assert {row[0] for row in rows(text)} == fields, REMEDY


async def test_every_metric_is_documented() -> None:
    text = (ROOT / "docs" / "operating.md").read_text()
    served = {family.name for family in await families() if family.name.startswith("distop_")}
    named = {re.sub(r"_(total|info)$", "", name) for name in re.findall(r"distop_[a-z_]+", text)}
    assert served <= named, REMEDY
    assert named <= served, REMEDY


def test_every_dependency_has_a_reason_and_names_its_extra() -> None:
    project = PACKAGES["project"]
    declared: dict[str, set[str]] = {}
    for extra, requirements in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for requirement in requirements:
            declared.setdefault(re.split(r"[<>=\[]", requirement)[0], set()).add(extra)
    del declared["distop"]  # the extra dev names the others by it
    documented = {}
    text = (ROOT / "docs" / "dependencies.md").read_text()
    for line in text.splitlines():
        if line.startswith("| `"):
            packages, _, extra = line.split("|")[1].partition("(extra ")
            for name in re.findall(r"`([\w-]+)`", packages):
                documented[name] = set(re.findall(r"`(\w+)`", extra)) or {""}
    assert documented == declared, REMEDY


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("example", "audit.py"),
        ("example-rows", "access_logs.py"),
        ("example-test", "test_access_logs.py"),
        ("example-export", "exports.py"),
        ("example-test-export", "test_exports.py"),
    ],
)
def test_the_examples_in_the_text_are_those_that_run(name: str, file: str) -> None:
    shown = section("docs/writing-operations.md", name)
    assert shown == f"```python\n{(ROOT / 'examples' / file).read_text()}```\n", REMEDY


@functools.cache
def anchors(document: Path) -> set[str]:
    """What links into a document may name: its headings, as they are rendered."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_guarantee_names_tests_that_exist() -> None:
    promised, shown = ((ROOT / f"docs/{page}.md").read_text() for page in ("guarantees", "evidence"))
    promises = [[row[0] for row in rows(text)] for text in (promised, shown)]
    assert promises[0] == promises[1], REMEDY
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", shown)
    assert len(named) > 30, REMEDY
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [f"{file}::{test}" for file, test in named if f"def {test}(" not in files.get(file, "")]
    assert not missing, REMEDY


def test_links_in_the_docs_lead_to_files_and_headings_that_exist() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
            path, _, anchor = target.partition("#")
            if "://" in path:
                continue
            wanted = (document.parent / path).resolve() if path else document
            assert wanted.exists(), f"{document.name}: {target}"
            assert not anchor or anchor in anchors(wanted), f"{document.name}: {target}"


def test_every_target_of_make_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in (*DOCUMENTS, ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.*")):
        for commands in re.findall(r"(?:`|entry: |^ {4})make ([a-z -]+)", document.read_text(), re.MULTILINE):
            named = commands.partition("  ")[0].split()
            assert set(named) <= targets, f"{document.name}: make {commands}"


def test_the_folders_that_contributing_names_exist() -> None:
    named = re.findall(r"`([\w/]+/|tests/[\w/]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert "tests/unit" in named
    assert not [folder for folder in named if not (ROOT / folder).is_dir()], REMEDY


def test_what_users_import_is_exported_by_a_room() -> None:
    for document in DOCUMENTS:
        for module, names in re.findall(
            r"^from (distop\.[\w.]+) import ([\w, ]+)$", document.read_text(), re.MULTILINE
        ):
            assert module.count(".") <= 2, f"{document.name}: {module} is inside of a room"
            for name in names.split(", "):
                assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_the_chart_is_of_this_release() -> None:
    """Its version, and the one that it labels everything with."""
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "distop" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == PACKAGES["project"]["version"]
