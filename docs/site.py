"""Hooks of mkdocs for ``make docs``: pages made from the repository, so that nothing is written twice.

The first page is README.md. CONTRIBUTING.md, SECURITY.md, CHANGELOG.md and the examples lie beside ``docs``.
The reference is made from the code: the command's help, the docstrings of what programs import, and the proto
file, and the classes of errors and metrics. ``llms.txt`` lists all pages for programs that read them.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from pathlib import Path

import reference
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

ROOT = Path(__file__).parents[1]
BESIDE = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
SDK = ["Client", "AsyncClient"]
OPERATIONS = ["DistributedOperation", "Plan", "JobContext"]
_pages: dict[str, tuple[str, str]] = {}
"""Title and first paragraph of each page, by its address."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file below ``docs`` is."""
    made = {"index.md": (ROOT / "README.md").read_text()}
    made |= {name: (ROOT / name).read_text() for name in BESIDE}
    made |= {f"examples/{path.name}": path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))}
    made["reference/command.md"] = _command()
    made["reference/sdk.md"] = _documented("The Python SDK", "distop.client", SDK)
    made["reference/operations.md"] = _documented("Operation types", "distop.operations", OPERATIONS)
    proto = (ROOT / "proto" / "distop.proto").read_text()
    made["reference/api.md"] = f"# The gRPC API\n\nThe file that it is made from:\n\n```proto\n{proto}```\n"
    made["reference/errors.md"] = _errors()
    made["reference/metrics.md"] = _metrics()
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of pages that lie elsewhere in the repository lead to where they are in the site."""
    if page.file.src_uri in ("index.md", *BESIDE):
        markdown = re.sub(r"\]\((?:docs/)+", "](", markdown)
        markdown = re.sub(r"\]\(docs\)", "](index.md)", markdown)
    return re.sub(r"\]\(\.\./(?=[A-Z]+\.md|examples/)", "](", markdown).replace("](README.md", "](index.md")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remember how the page begins: ``llms.txt`` says it."""
    first = re.search(r"<p>(.*?)</p>", html, re.DOTALL)
    if first and not page.file.src_uri.startswith("reference/"):
        text = " ".join(re.sub(r"<[^>]+>", "", first[1]).split())
        _pages[page.file.src_uri] = (str(page.title), text.partition(". ")[0])
    return html


def on_post_build(config: MkDocsConfig) -> None:
    lines = ["# distop", "", f"> {config.site_description}.", "", "## Pages", ""]
    lines += [f"- [{title}]({posixpath.splitext(uri)[0]}/): {text}" for uri, (title, text) in _pages.items()]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n")


def _command() -> str:
    from distop.cli.main import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="distop")
    return get_docs_for_click(obj=command, ctx=context, name="distop", title="The command")


def _documented(title: str, module: str, names: list[str]) -> str:
    return f"# {title}\n\n" + "\n".join(f"::: {module}.{name}\n" for name in names)


def _errors() -> str:
    lines = [
        "# Errors",
        "",
        "What they have in common: [errors and exit codes](../operating.md#errors-and-exit-codes).",
        "*retry*: the same call may succeed later without a change.",
        "",
        "| code | gRPC | exit | retry | meaning, and what to do |",
        "|---|---|---|---|---|",
    ]
    for error in reference.errors():
        retry = "yes" if error.retryable else ""
        meaning = f"{error.meaning} *{error.hint}*" if error.hint else error.meaning
        lines.append(f"| `{error.code}` | `{error.status}` | {error.exit_code} | {retry} | {meaning} |")
    return "\n".join(lines) + "\n"


def _metrics() -> str:
    lines = [
        "# Metrics",
        "",
        "Which of them deserve an alert:",
        "[operating](../operating.md#monitoring-command-line-page-metrics-logs).",
        "A counter is exposed with the suffix `_total`.",
    ]
    for service, served in asyncio.run(reference.families()).items():
        lines += ["", f"## {service.capitalize()}", "", "| metric | type | what it counts |", "|---|---|---|"]
        ours = (family for family in served if family.name.startswith("distop_"))
        lines += [f"| `{family.name}` | {family.type} | {family.documentation} |" for family in ours]
    return "\n".join(lines) + "\n"
