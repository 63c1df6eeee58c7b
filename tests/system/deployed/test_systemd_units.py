"""The units of deploy/systemd, as systemd itself reads them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from support.processes import captured
from support.repository import ROOT

pytestmark = [
    pytest.mark.skipif(
        not shutil.which("systemd-analyze"),
        reason="systemd-analyze is not there: no target of make installs systemd",
    ),
    pytest.mark.process,
    pytest.mark.slow("needs systemd-analyze"),
]

UNITS = ROOT / "deploy" / "systemd"
NAMES = ("distop-coordinator", "distop-executor", "distop-sidecar")
MOST_EXPOSED = "20"
"""Of 100: 0 is a unit that may do nothing."""


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units in a folder, with a program that exists here."""
    for unit in UNITS.glob("*.service"):
        text = unit.read_text()
        assert "\nExecStart=/opt/distop/bin/distop " in text
        (tmp_path / unit.name).write_text(text.replace("/opt/distop/bin/distop", "/bin/true"))
    return tmp_path


def analyze(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *words]
    return captured(command, cwd=folder, timeout=60)


@pytest.mark.parametrize("name", NAMES)
def test_systemd_takes_the_unit_without_a_word(units: Path, name: str) -> None:
    """D1: there is no option that it does not know."""
    said = analyze(units, "verify", "--man=no", f"./{name}.service")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_may_do_little(units: Path, name: str) -> None:
    """D1: as systemd rates it."""
    said = analyze(
        units, "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSED}", f"{name}.service"
    )
    assert said.returncode == 0, said.stdout[-400:] + said.stderr


def test_a_wrong_unit_is_told(units: Path) -> None:
    """So that silence means something."""
    unit = units / "distop-sidecar.service"
    unit.write_text(unit.read_text().replace("Type=notify", "Type=notified"))
    assert "service type" in analyze(units, "verify", "--man=no", f"./{unit.name}").stderr


def test_no_unit_is_left_out() -> None:
    assert sorted(unit.stem for unit in UNITS.glob("*.service")) == list(NAMES)
