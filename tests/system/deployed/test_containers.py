"""The images of deploy/Dockerfile, built and run as they are meant to be: read-only, with no rights.

The base is ``DISTOP_BASE_IMAGE``, or made here, which only root can.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from distop.metastore.etcd.embedded import free_port
from support.containers import NOT_THERE, base_of_images, engine_or_skip
from support.processes import captured, end, listens
from support.repository import ROOT
from support.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("needs docker, and builds both images"),
    pytest.mark.timeout(1800),
]

BUILD_S = 800
KINDS = ("service", "spark")
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
    service, spark = (engine.images.get(f"distop:{name}") for name in KINDS)
    for image in (service, spark):
        config = image.attrs["Config"]
        assert (config["User"], config["Entrypoint"]) == ("10001:10001", ["distop"])
        assert config["Healthcheck"]["Test"] == ["CMD", "distop", "cluster", "probe"]
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


def tool(folder: str, name: str) -> str:
    """A program that a script of ``deploy`` has put there, or that of the PATH."""
    path = f"{ROOT / '.venv' / folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return shutil.which(name, path=path) or pytest.skip(
        f"{name} is not there: deploy/{folder}.sh .venv/{folder}"
    )


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry on loopback: its address."""
    program, address = tool("registry", "docker-registry"), f"127.0.0.1:{free_port()}"
    kept = {"filesystem": {"rootdirectory": str(tmp_path / "registry")}}
    config = tmp_path / "registry.yaml"
    config.write_text(yaml.safe_dump({"version": 0.1, "storage": kept, "http": {"addr": address}}))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", config], stdout=log, stderr=log)
    try:
        until(lambda: listens(address))
        yield address
    finally:
        end(process)


def test_a_release_is_pushed_whole_under_its_version_and_once(
    engine: Any, registry: str, tmp_path: Path
) -> None:
    """The chart that is installed from the registry names the images that are there."""
    helm = tool("helm", "helm")
    homes = {f"HELM_{name}_HOME": str(tmp_path / "helm") for name in ("CACHE", "CONFIG", "DATA")}
    environment = {**os.environ, **homes, "BASE": base_of_images(), "PLAIN_HTTP": "1"}
    environment["OUT"] = str(left := tmp_path / "release")

    def release() -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "deploy" / "release.sh"), f"{registry}/team"]
        return captured(command, env=environment, timeout=BUILD_S)

    done = release()
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    checked = captured(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=left)
    assert checked.returncode == 0, checked.stdout
    (wheel,), (chart,) = left.glob("*.whl"), left.glob("*.tgz")
    version = wheel.name.split("-")[1]
    assert chart.name == f"distop-{version}.tgz"

    words = ["template", "distop", f"oci://{registry}/team/charts/distop", "--version", version]
    values = "etcd.endpoints={etcd:2379},coordinator.insecure=true"
    options = ["--plain-http", "--kube-version", "1.31", "--set", values]
    rendered = captured([helm, *words, *options], env=environment)
    assert rendered.returncode == 0, rendered.stderr
    named = {
        container["image"]
        for one in yaml.safe_load_all(rendered.stdout)
        if one and one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    prefix = f"{registry}/team/distop"
    assert {name.partition("@")[0] for name in named} == {f"{prefix}/{kind}:{version}" for kind in KINDS}
    for name in named:
        repository, _, digest = name.partition("@")
        engine.images.remove(repository)
        pulled = engine.images.pull(f"{repository.rpartition(':')[0]}@{digest}")
        kind = repository.rpartition(":")[0].rpartition("/")[2]
        assert pulled.id == engine.images.get(f"distop:{kind}").id

    again = release()
    assert (again.returncode, f"{version} is released there" in again.stderr) == (1, True), again.stderr
