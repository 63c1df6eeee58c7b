"""Running what a page of the documentation shows, as a reader would, block by block.

Fenced blocks are run; examples that are not run are indented. Where a line says
``exit code N``, it has to end so.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from distop.cli.main import app
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import find_etcdctl
from support.repository import ROOT
from support.services.coordinators import config_of, running
from support.services.executing import runner

EXAMPLES = ["audit:Audit", "access_logs:access_logs", "exports:CsvExport"]

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]*) -->\n)?(?:^<!-- [\w-]+:begin -->\n)?"
    r"^```(?P<kind>sh|python)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
_SNAPSHOT = re.compile(r"\b4216351713844670481\b")
"""Stands in the text for the id of a snapshot; here it is that of the oldest."""


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    kind: str
    code: str
    why_not: str
    """Why it is not run; empty: it is."""


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order."""
    text = (ROOT / page).read_text()
    return [Block(match["kind"], match["code"], match["why"] or "") for match in _BLOCK.finditer(text)]


def lines(code: str) -> Iterator[str]:
    """The command lines of a shell's block: they go on behind a backslash, and within quotation marks."""
    waiting = ""
    for line in code.splitlines(keepends=True):
        waiting += line
        try:
            shlex.split(waiting, comments=True)
        except ValueError:
            continue
        if not waiting.endswith("\\\n"):
            if shlex.split(waiting, comments=True):
                yield waiting
            waiting = ""


@dataclass
class Reader:
    """Who follows a page: with a folder instead of /tmp, and ports and a prefix of keys of its own."""

    folder: Path
    places: dict[str, str]
    """What stands in the text, and what it is here."""
    environment: dict[str, str]
    names: dict[str, Any] = field(default_factory=dict)
    """Those of the page's Python."""
    python: str = ""
    """What runs Python and ``distop`` as programs of their own; empty: this process does, quicker."""

    def __post_init__(self) -> None:
        self.at = self.folder

    def run(self, page: str) -> None:
        """All blocks of a page."""
        for block in blocks(page):
            if not block.why_not and block.kind == "sh":
                for line in lines(block.code):
                    self.type(line)
            elif not block.why_not:
                self._exec(self._here(block.code), page)

    def _exec(self, code: str, page: str) -> None:
        if not self.python:
            exec(compile(code, page, "exec"), self.names)
            return
        (self.folder / "typed.py").write_text(code)
        status, printed = self._shell(f"{self.python} {self.folder / 'typed.py'}")
        assert status == 0, printed

    def type(self, line: str) -> str:
        """Type one line; what it prints. Its exit code must be the one that the line names."""
        expected = int(match[1]) if (match := re.search(r"# (?:.*, )?exit code (\d+)$", line.strip())) else 0
        words = shlex.split(self._here(line).replace("\\\n", " "), comments=True)
        if words[0] == "export" or words[:2] == ["distop", "dev"]:
            return ""  # that is done
        if words[0] == "curl":
            with urllib.request.urlopen(words[-1], timeout=20) as answer:
                return str(answer.read().decode())
        if (
            not self.python
            and words[0] == "distop"
            and not re.search(r"[|&;<>$`]", re.sub(r"'[^']*'", "", line))
        ):
            os.chdir(self.at)
            done = CliRunner(env=self.environment).invoke(app, words[1:], prog_name="distop")
            code, printed = done.exit_code, done.output
        else:
            code, printed = self._shell(self._here(line))
        assert code == expected, f"{line}ended with {code}:\n{printed}"
        return printed

    def _shell(self, line: str) -> tuple[int, str]:
        script = f"{line}\ncode=$?; pwd > {self.folder}/.at; exit $code"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.at,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        self.at = Path((self.folder / ".at").read_text().strip())
        return done.returncode, done.stdout

    def _here(self, text: str) -> str:
        for written, here in self.places.items():
            text = text.replace(written, here)
        if _SNAPSHOT.search(text):
            listed = json.loads(self.type("distop snapshot list flights --output json\n"))
            text = _SNAPSHOT.sub(str(listed[-1]["snapshot_id"]), text)
        return text


@asynccontextmanager
async def reading(etcd: EtcdConfig, client: EtcdClient, folder: Path) -> AsyncIterator[Reader]:
    """What ``distop dev --master none`` runs, with the types of the examples, in this event loop."""
    served = {"web": "127.0.0.1:0", "catalog": "127.0.0.1:0", "warehouse": f"file://{folder}/warehouse"}
    config = config_of(etcd, **served, operations=EXAMPLES, lease_ttl_s=60)
    async with running(config) as coordinator, runner(client, more=EXAMPLES, lease_ttl_s=60):
        (folder / "incoming").mkdir()
        places = {
            "Client()": 'Client("127.0.0.1:7070")',
            "127.0.0.1:7070": coordinator.address,
            "127.0.0.1:7071": str(coordinator.web_address),
            "127.0.0.1:7072": coordinator.catalog_address,
            "127.0.0.1:2379": etcd.endpoints[0],
            "distOp.": f"{etcd.prefix}.",
            "/tmp/": f"{folder}/",
        }
        path = [str(Path(sys.executable).parent), str(find_etcdctl().parent), os.environ["PATH"]]
        environment = {
            "PATH": os.pathsep.join(path),
            "DISTOP_ADDRESS": coordinator.address,
            "DISTOP_PREFIX": etcd.prefix,
            "ETCDCTL_ENDPOINTS": etcd.endpoints[0],
        }
        yield Reader(folder, places, environment)
