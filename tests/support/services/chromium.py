"""A Chromium with scripts, driven by the DevTools protocol over a pipe: nothing of it listens."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")

LONGEST_S = 30.0
"""Deadline of one command, in seconds."""

NARROW, WIDE = 420, 1360
"""Widths of a window, in pixels."""


@dataclass
class Browser:
    """One page of a browser."""

    to: int
    answers: int
    """Descriptors of the pipe."""
    session: str = ""
    _count: int = 0
    _rest: bytes = b""
    _events: list[dict[str, Any]] = field(default_factory=list)

    def open(self, address: str, *, width: int = WIDE, dark: bool = False) -> None:
        """Show an address, in a window of this width, once all of it is loaded."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.send("Emulation.setEmulatedMedia", features=[scheme, motion])
        with self.leaving():
            self.send("Page.navigate", url=address)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """What is done inside leads to another page: once all of that is loaded."""
        self._events.clear()
        yield
        deadline = time.monotonic() + LONGEST_S
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next(deadline))

    def evaluate(self, script: str) -> Any:
        """The value of an expression, once it is there; JSON."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, file: Path, *, tallest: int = 2000) -> None:
        """Write a PNG of the whole page, cut at this height in pixels."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], tallest), "scale": 1}
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """The answer to a command."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        sent = memoryview(json.dumps(message).encode() + b"\0")
        while sent:
            sent = sent[os.write(self.to, sent) :]
        deadline = time.monotonic() + LONGEST_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:
                self._events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser has not answered within {LONGEST_S:.0f} s"
            more = os.read(self.answers, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with its profile in ``folder``; ended with the block."""
    assert CHROMIUM is not None
    commands, to = os.pipe()
    answers, answered = os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    options += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
    # It reads commands from descriptor 3, and answers on 4.
    script = f'exec "$0" "$@" 3<&{commands} 4>&{answered}'
    process = subprocess.Popen(
        ["bash", "-c", script, CHROMIUM, *options],
        pass_fds=(commands, answered),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands)
    os.close(answered)
    try:
        page = Browser(to, answers)
        target = page.send("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page.send("Page.enable")
        yield page
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to)
        os.close(answers)
