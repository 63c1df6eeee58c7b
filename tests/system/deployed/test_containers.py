"""The images of deploy/Dockerfile, built and run as they are meant to be: read-only, with no rights.

The base is ``DISTOP_BASE_IMAGE``, or made here, which only root can.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from support.etcd.containers import NOT_THERE, base_of_images, engine_or_skip
from support.processes import captured
from support.repository import ROOT

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("needs docker, and builds both images"),
    pytest.mark.timeout(900),
]

BUILD_S = 800
SERVICE_MB = 250
"""Most that the image ``service`` may have over a base that has Python."""

CONFINED: dict[str, Any] = {
    "read_only": True,
    "tmpfs": {"/tmp": "mode=1777", "/run/distop": "uid=10001,gid=10001,mode=0700"},
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
}


@pytest.fixture(scope="module")
def engine() -> Any:
    """An engine that has both images."""
    if not (base := base_of_images()):
        pytest.skip(NOT_THERE)
    environment = {**os.environ, "BASE": base}
    done = captured([ROOT / "deploy" / "images.sh"], env=environment, timeout=BUILD_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return engine_or_skip()


def test_the_images_are_small_and_run_as_nobody_special(engine: Any) -> None:
    """D1: read-only, without a capability, and without what only users of Spark need."""
    service, spark = (engine.images.get(f"distop:{name}") for name in ("service", "spark"))
    for image in (service, spark):
        config = image.attrs["Config"]
        assert (config["User"], config["Entrypoint"]) == ("10001:10001", ["distop"])
        assert config["Healthcheck"]["Test"] == ["CMD", "distop", "probe"]
    (added,) = (
        layer["Size"]
        for layer in service.history()
        if layer["CreatedBy"].startswith("/bin/sh -c #(nop) COPY")
    )
    assert added / 1e6 < SERVICE_MB
    said = engine.containers.run("distop:service", ["--version", "-o", "json"], remove=True, **CONFINED)
    assert json.loads(said)["version"]
    # With all that it may ask its libraries for; and there is no Java in it.
    modules = "numpy, pyarrow._s3fs, s3fs, confluent_kafka, pyarrow.parquet, "
    modules += "pyarrow.dataset, distop.coordinator.rest.app, shutil"
    command = ["-c", f"import {modules}; print(shutil.which('java'))"]
    said = engine.containers.run("distop:service", command, entrypoint="python", remove=True, **CONFINED)
    assert said.decode().strip() == "None"
