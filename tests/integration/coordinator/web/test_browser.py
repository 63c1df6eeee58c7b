"""Pages in a real browser: htmx keeps them fresh, and the policy of the page stops nothing of it."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.services.browsing import Web, url
from support.services.coordinators import Service

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not there"),
    pytest.mark.slow("starts a browser for each page"),
]

SCRIPTED_MS = 6000
"""Time that a page has, by the clock of its scripts: they ask again every two seconds."""


def browsed(address: str, folder: Path) -> tuple[str, str]:
    """The page as its scripts have left it, and what the browser complains about."""
    assert CHROMIUM is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    options += ["--enable-logging=stderr", f"--virtual-time-budget={SCRIPTED_MS}", "--dump-dom", address]
    done = subprocess.run([CHROMIUM, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, "\n".join(complaints)


async def test_an_open_page_is_kept_fresh(service: Service, web: Web, tmp_path: Path) -> None:
    """U1"""
    operation = await service.start("t", argument={"partitions": 5})
    for path in ("/", url("/table", "t"), url("/operation", str(operation)), "/doctor"):
        page, complaints = await asyncio.to_thread(browsed, f"http://{web.address}{path}", tmp_path)
        assert re.search(r'<p id="live" role="status">live</p>', page), path
        assert not complaints, path


async def test_a_page_that_cannot_ask_again_says_how_old_it_is(web: Web, tmp_path: Path) -> None:
    """U4: a saved page, whose browser may not ask a coordinator."""
    saved = (await web.get("/")).text.replace('="/', f'="http://{web.address}/')
    (tmp_path / "page.html").write_text(saved)
    page, _ = await asyncio.to_thread(browsed, f"file://{tmp_path}/page.html", tmp_path / "profile")
    assert "this coordinator does not answer — what you see is" in page
