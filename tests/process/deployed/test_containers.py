"""The images of deploy/Dockerfile, built and run as they are meant to be: read-only, with no rights.

The base is ``DISTOP_BASE_IMAGE``, or made here, which only root can.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from support.etcd.containers import NOT_THERE, base_of_images, engine_or_skip
from support.etcd.containers import image as etcd_image
from support.processes import captured
from support.repository import ROOT
from support.waiting import eventually

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


class Place:
    """A network with an etcd in it, and the services that are started there."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._network = engine.networks.create(f"distop-test-{os.getpid()}")
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._network.remove)
        self.etcd = self._run(
            etcd_image(),
            "etcd",
            "--listen-client-urls=http://0.0.0.0:2379",
            "--advertise-client-urls=http://etcd:2379",
        )

    def _run(self, image: str, name: str, *command: str, **options: Any) -> Any:
        from docker.types import EndpointConfig

        # Under its name from its start: an etcd that cannot resolve its own name ends.
        endpoint = EndpointConfig(self._engine.api.api_version, aliases=[name])
        container = self._engine.containers.run(
            image,
            list(command),
            detach=True,
            hostname=name,
            network=self._network.name,
            networking_config={self._network.name: endpoint},
            **options,
        )
        self._stack.callback(container.remove, force=True, v=True)
        return container

    def service(self, image: str, name: str, *command: str) -> Any:
        environment = {"DISTOP_ETCD": "etcd:2379", "DISTOP_ADDRESS": "coordinator:7070"}
        return self._run(f"distop:{image}", name, *command, environment=environment, **CONFINED)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def place(engine: Any) -> Iterator[Place]:
    made = Place(engine)
    yield made
    made.close()


def health(container: Any) -> str:
    container.reload()
    state = container.attrs["State"]
    assert state["Running"], container.logs()[-2000:]
    return str(state["Health"]["Status"])


def distop(container: Any, *words: str) -> Any:
    """What a command says inside of a container; it must succeed."""
    code, (out, err) = container.exec_run(["distop", *words, "-o", "json"], demux=True)
    assert code == 0, (out, err, container.logs()[-2000:])
    return json.loads(out)


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


async def test_an_operation_runs_through_the_images(place: Place) -> None:
    """D1: a coordinator and a sidecar of one image, an executor with Spark of the other."""
    web = ("--listen", "0.0.0.0:7070", "--web", "0.0.0.0:7071", "--insecure", "--allow-location", "/tmp")
    coordinator = place.service("service", "coordinator", "coordinator", *web)
    sidecar = place.service("service", "sidecar", "sidecar")
    executor = place.service("spark", "executor", "executor", "--master", "local[1]")
    services = {"coordinator": coordinator, "sidecar": sidecar, "executor": executor}
    for service in services.values():
        await eventually(lambda service=service: health(service) == "healthy", 120.0, every_s=0.5)
    roles = {member["role"] for member in distop(coordinator, "members")}
    assert roles == {"coordinator", "executor", "sidecar"}
    distop(coordinator, "tables", "create", "t", "--location", "/tmp/t")
    ended = distop(coordinator, "start", "t", "noop", "--arg", "partitions=20", "--wait")
    assert (ended["state"], ended["jobs"]["succeeded"]) == ("succeeded", 20)
    for path in ("livez", "readyz"):
        code, _ = coordinator.exec_run(
            ["python", "-c", f"from urllib.request import urlopen as o; o('http://127.0.0.1:7071/{path}')"]
        )
        assert code == 0
    for name, service in services.items():
        service.stop(timeout=30)
        assert service.wait()["StatusCode"] == 0, (name, service.logs()[-2000:])
