"""docs/first-steps.md shows three ways to run distop. The first is its tour, which ``test_docs_run.py``
types; the others are run here, where what they need is there.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.containers import NOT_THERE, base_of_images
from support.pages import Block, blocks, lines
from support.processes import captured
from support.repository import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow("needs docker, and helm"), pytest.mark.timeout(1800)]

HELM = shutil.which("helm", path=f"{ROOT / '.venv' / 'helm' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
PROJECT = "distop-three-ways"


def block(word: str) -> Block:
    (found,) = (one for one in blocks("docs/first-steps.md") if word in one.code)
    return found


def test_a_cluster_in_containers_as_the_page_starts_it() -> None:
    """D1: two coordinators, two executors with Spark, three members of etcd."""
    base = base_of_images()
    compose = ["docker", "compose", "-f", "deploy/compose.yaml"]
    if not base or subprocess.run([*compose, "version"], capture_output=True, check=False).returncode:
        pytest.skip(NOT_THERE)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Not the cluster that somebody may have started by the same commands.
    environment = {**os.environ, "PATH": path, "BASE": base, "COMPOSE_PROJECT_NAME": PROJECT}
    try:
        done = captured(
            ["bash", "-euxo", "pipefail", "-c", block("make cluster-up").code],
            cwd=ROOT,
            env=environment,
            timeout=1500,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    finally:
        subprocess.run([*compose, "down", "--volumes"], cwd=ROOT, env=environment, timeout=200, check=True)
    assert "1,000" in done.stdout or "1000" in done.stdout, done.stdout
    assert done.stdout.count(" coordinator ") == 2, done.stdout
    assert done.stdout.count(" executor ") == 2, done.stdout


@pytest.mark.skipif(HELM is None, reason="helm is not there: make test-helm")
def test_helm_renders_what_the_page_installs() -> None:
    """D1: with the values and the images that it names."""
    (command,) = (line for line in lines(block("helm install").code) if line.startswith("helm install"))
    words = shlex.split(command.replace("\\\n", " "))[2:]
    done = captured([str(HELM), "template", *words, "--kube-version=1.30.0"], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    services = [one["metadata"]["name"] for one in objects if one["kind"] == "Service"]
    assert "distop-coordinator" in services
    images = {
        container["image"]
        for one in objects
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"registry.example/distop:service", "registry.example/distop:spark"}
