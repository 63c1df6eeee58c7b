"""Pictures of every page, from a real run of ``distop demo`` with Spark, whose runner and leader are killed.

    make screenshots

Each page is taken in light, in dark and on a narrow screen, into ``build/screenshots``: two pages while the
table is filled, the others at the end.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from distop.cli.demo.crew import until
from distop.cli.demo.days import make_days
from distop.cli.demo.play import DAYS, ROWS, acts
from distop.cli.demo.stage import TABLE, Stage
from distop.cli.dev import end_sidecar
from distop.client import Operation
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.processes import listens
from support.services.browsing import url
from support.services.chromium import CHROMIUM, NARROW, WIDE, Browser, browser

LOOKS = {"light": (WIDE, False), "dark": (WIDE, True), "narrow": (NARROW, False)}
TALLEST = {WIDE: 800, NARROW: 1200}
"""Of a picture, in pixels, by its width."""
OF_TABLE = ("", "/snapshots", "/batches", "/schedules", "/watermarks", "/rules", "/quarantine")
ALONE = ("operations", "members", "doctor", "audit")


class Photographer(Stage):
    """The stage of the demo, with pictures of what happens."""

    def __init__(self, folder: Path, config: EtcdConfig, camera: Browser, album: Path, master: str) -> None:
        super().__init__(folder, config, Console(), master=master)
        self._camera, self._album = camera, album
        self._killed = iter(("runner", "leader"))

    def strike(self, day: str, blow: Callable[[Operation], str]) -> str:
        def watched(operation: Operation) -> str:
            note, killed = blow(operation), next(self._killed)
            # The leader that was killed may be the coordinator that serves the page, which is started again.
            until(lambda: listens(self.page) or None, "the page")
            until(lambda: self.some_done(operation) or None, "its first jobs")
            path = url("/operation", operation.name)
            self.take({f"operation-{killed}-killed": path, f"overview-{killed}-killed": "/"})
            return note

        return super().strike(day, watched)

    def some_done(self, operation: Operation) -> bool:
        now = self.client.operation(operation.name).get()
        return now.done or now.jobs.succeeded > 3

    def take(self, pages: dict[str, str]) -> None:
        """A picture of each page, by name, in each look."""
        for look, (width, dark) in LOOKS.items():
            for name, path in pages.items():
                self._camera.open(f"http://{self.page}{path}", width=width, dark=dark)
                self._camera.picture(self._album / f"{name}-{look}.png", tallest=TALLEST[width])


def main() -> int:
    if CHROMIUM is None:
        print("Chromium is not there")
        return 77
    master = sys.argv[1] if len(sys.argv) > 1 else "local[1]"
    album = Path("build/screenshots")
    album.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="distop-screenshots-") as name,
        browser(Path(name) / "profile") as camera,
        EtcdProcess(Path(name) / "etcd") as etcd,
    ):
        config, folder = EtcdConfig(endpoints=(etcd.endpoint,)), Path(name)
        days = make_days(folder / "source", DAYS, ROWS)
        stage = Photographer(folder, config, camera, album, master)
        try:
            checks = acts(stage, days)
            pages = {f"table{path.replace('/', '-')}": url(f"/table{path}", TABLE) for path in OF_TABLE}
            stage.take({"overview": "/", **pages, **{page: f"/{page}" for page in ALONE}})
        finally:
            stage.client.close()
            stage.catalog.close()
            stage.crew.stop_all()
            end_sidecar(config)
    print(f"the pictures are in {album}")
    return 0 if all(holds for _, holds, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
