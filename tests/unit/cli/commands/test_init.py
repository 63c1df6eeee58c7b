"""``distop init`` writes a whole project, or nothing. ``test_docs_run.py`` runs its README."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from distop.cli.main import app


def init(folder: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["init", str(folder)], prog_name="distop")
    return done.exit_code, " ".join(done.stderr.split())


def written(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_nothing_is_overwritten_and_what_is_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text("mine")
    (tmp_path / "README.md").symlink_to("nowhere")
    code, said = init(tmp_path)
    assert (code, "has README.md, rules.json already" in said) == (4, True), said
    assert written(tmp_path) == {"rules.json": "mine"}
    code, said = init(tmp_path / "rules.json" / "below")
    assert (code, "cannot be written to" in said) == (2, True), said
    assert init(tmp_path / "new" / "shop")[0] == 0


def test_a_project_that_cannot_be_written_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def full(path: Path, mode: str = "r") -> Any:
        if (path.name, mode) == ("rules.json", "xb"):
            raise OSError("no space left on device")
        return opened(path, mode)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        code, said = init(tmp_path)
    assert (code, "no space left on device" in said) == (2, True), said
    assert written(tmp_path) == {}
