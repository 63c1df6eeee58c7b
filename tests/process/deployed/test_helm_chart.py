"""The Helm chart: what it renders is what Kubernetes takes, and values that make no sense are refused.

``make test-helm`` provides ``helm`` and ``kubernetes-validate``, which has strict schemas; without them these
tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from support.command_lines import parse
from support.repository import ROOT

CHART = ROOT / "deploy" / "helm" / "distop"
PATH = os.pathsep.join([str(ROOT / ".venv" / "helm" / "bin"), os.environ.get("PATH", "")])
HELM, VALIDATE = shutil.which("helm", path=PATH), shutil.which("kubernetes-validate", path=PATH)

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not (HELM and VALIDATE), reason="helm is not there: make test-helm"),
]

KUBERNETES = ("1.29", "1.31", "1.33", "1.35", "1.37")
LEAST = {"etcd": {"endpoints": ["etcd-0:2379"]}, "coordinator": {"insecure": True}}
VALUES: dict[str, dict[str, Any]] = {
    "least": LEAST,
    "one of each": {
        **LEAST,
        "coordinator": {"insecure": True, "replicas": 1},
        "executor": {"replicas": 1, "workers": {"instances": 1, "cores": 1, "memory": "512m"}},
        "networkPolicy": {"enabled": False},
    },
    "all there is": {
        "image": {
            "service": "images.example/distop:1-service",
            "spark": "images.example/distop@sha256:0123456789abcdef",
            "pullPolicy": "Always",
            "pullSecrets": ["pull", "pull-2"],
        },
        "etcd": {
            "endpoints": ["etcd-0.etcd:2379", "https://etcd-1.etcd:2379", "[fd00::1]:2379"],
            "prefix": "other",
            "user": "distop",
            "passwordSecret": "etcd-user",
            "tlsSecret": "etcd-tls",
        },
        "allow": {
            "sources": ["s3://in/", "*"],
            "locations": ["s3://tables/"],
            "endpoints": ["https://s3.example"],
        },
        "credentialsSecret": "aws",
        "coordinator": {
            "replicas": 3,
            "tlsSecret": "page-tls",
            "tokensSecret": "tokens",
            "admins": ["root", "k8s:system:serviceaccount:data:root"],
            "issuers": ["https://login.example"],
            "serviceAccounts": "https://kubernetes.default.svc.cluster.local",
            "audience": "distop",
            "catalog": {"enabled": True, "warehouse": "s3://tables/"},
            "args": ["--remember-requests=3d"],
            "resources": {"requests": {"cpu": 2, "memory": "1Gi"}},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "only", "operator": "Equal", "value": "distop", "effect": "NoSchedule"}],
        },
        "executor": {
            "types": ["ingest", "compact"],
            "conf": {"spark.executor.memory": "4g", "spark.speculation": True},
            "args": ["--log-level=debug"],
            "tolerations": [{"operator": "Exists"}],
            "workers": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}]},
        },
        "networkPolicy": {"clients": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        "monitoring": {
            "serviceMonitor": True,
            "podMonitor": True,
            "prometheusRule": True,
            "tokenSecret": "prometheus-token",
            "labels": {"release": "prometheus"},
        },
    },
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no etcd": ({"coordinator": {"insecure": True}}, "'/etcd/endpoints': minItems: got 0, want 1"),
    "an etcd without a port": (
        {"etcd": {"endpoints": ["etcd"]}},
        "'/etcd/endpoints/0': 'etcd' does not match",
    ),
    "a secret instead of its name": (
        {**LEAST, "etcd": {"endpoints": ["e:2379"], "password": "secret"}},
        "'/etcd': additional properties 'password' not allowed",
    ),
    "a name that no secret has": (
        {**LEAST, "credentialsSecret": "a b"},
        "'/credentialsSecret': 'a b' does not",
    ),
    "a value with a slip": ({**LEAST, "executer": {}}, "additional properties 'executer' not allowed"),
    "no coordinator": ({**LEAST, "coordinator": {"replicas": 0}}, "minimum: got 0, want 1"),
    "an image that moves": ({**LEAST, "image": {"service": "distop:latest"}}, "'/image/service'"),
    "a setting that is not Spark's": (
        {**LEAST, "executor": {"conf": {"a": "b"}}},
        "invalid propertyName 'a'",
    ),
    "neither TLS nor the word that it is left out": (
        {"etcd": {"endpoints": ["e:2379"]}},
        "coordinator.tlsSecret must name a secret with tls.crt and tls.key; or allow plain text",
    ),
    "both": (
        {**LEAST, "coordinator": {"insecure": True, "tlsSecret": "tls"}},
        "coordinator.tlsSecret and coordinator.insecure contradict each other",
    ),
    "a user without a password": (
        {**LEAST, "etcd": {"endpoints": ["e:2379"], "user": "distop"}},
        "etcd.user and etcd.passwordSecret go together",
    ),
    "an issuer for everybody": (
        {**LEAST, "coordinator": {"insecure": True, "issuers": ["https://login.example"]}},
        "coordinator.audience must say which",
    ),
    "service accounts for everybody": (
        {**LEAST, "coordinator": {"insecure": True, "serviceAccounts": "https://kubernetes.default.svc"}},
        "coordinator.audience must say which",
    ),
    "keys over plain text": (
        {**LEAST, "coordinator": {"insecure": True, "serviceAccounts": "http://k", "audience": "a"}},
        "'/coordinator/serviceAccounts'",
    ),
    "a warehouse without a catalog": (
        {**LEAST, "coordinator": {"insecure": True, "catalog": {"warehouse": "s3://b/"}}},
        "coordinator.catalog.enabled=true",
    ),
}


def helm(
    folder: Path, command: str, values: dict[str, Any], version: str = "1.31"
) -> subprocess.CompletedProcess[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    names = ["flights", str(CHART)] if command == "template" else [str(CHART), "--strict"]
    return subprocess.run(
        [str(HELM), command, *names, "--namespace=data", f"--kube-version={version}", f"--values={file}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rendered(folder: Path, values: dict[str, Any], version: str = "1.31") -> list[dict[str, Any]]:
    """The objects, with the pod that Spark makes from its template among them."""
    said = helm(folder, "template", values, version)
    assert said.returncode == 0, said.stderr
    found: list[dict[str, Any]] = [one for one in yaml.safe_load_all(said.stdout) if one]
    (worker,) = (one["data"]["worker.yaml"] for one in found if one["kind"] == "ConfigMap")
    return [*found, {**yaml.safe_load(worker), "metadata": {"name": "worker"}}]


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The specs of pods, by the name of their first container that is no sidecar."""
    specs = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    specs += [one["spec"] for one in objects if one["kind"] == "Pod"]
    return {spec["containers"][0]["name"]: spec for spec in specs}


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    said = helm(tmp_path, "lint", VALUES[name])
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_takes_what_is_rendered(name: str, version: str, tmp_path: Path) -> None:
    """Strictly: an unknown field is an error. What Prometheus's operator brings is not in the schemas."""
    objects = rendered(tmp_path, VALUES[name], version)
    ours = [one for one in objects if not one["apiVersion"].startswith("monitoring.")]
    assert len(objects) - len(ours) == 3 * (name == "all there is")
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(ours))
    said = subprocess.run(
        [str(VALIDATE), "--strict", "-k", version, str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("passed") == len(ours), said.stdout


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_make_no_sense_are_refused(name: str, tmp_path: Path) -> None:
    values, message = REFUSED[name]
    said = helm(tmp_path, "template", values)
    assert said.returncode != 0
    assert message in said.stderr


@pytest.mark.parametrize("name", VALUES)
def test_every_container_is_restricted(name: str, tmp_path: Path) -> None:
    """As the Pod Security Standard of that name asks for, and read-only besides."""
    for spec in pods(rendered(tmp_path, VALUES[name])).values():
        whole = spec["securityContext"]
        assert (whole["runAsNonRoot"], whole["runAsUser"]) == (True, 10001)
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in chain(spec.get("initContainers", ()), spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        kinds = {next(kind for kind in volume if kind != "name") for volume in spec["volumes"]}
        assert kinds <= {"emptyDir", "secret", "configMap", "projected"}


def test_only_sidecars_hold_what_opens_etcd_among_the_workers(tmp_path: Path) -> None:
    spec = pods(rendered(tmp_path, VALUES["all there is"]))["worker"]
    (sidecar,), (worker,) = spec["initContainers"], spec["containers"]
    assert sidecar["restartPolicy"] == "Always"
    secrets = {volume["name"] for volume in spec["volumes"] if "secret" in volume}
    assert secrets == {"etcd-user", "etcd-tls"}
    assert secrets <= {mount["name"] for mount in sidecar["volumeMounts"]}
    assert not secrets & {mount["name"] for mount in worker["volumeMounts"]}
    assert "env" not in worker
    # They meet in one folder.
    assert all(
        {"name": "run", "mountPath": "/run/distop"} in one["volumeMounts"] for one in (sidecar, worker)
    )


@pytest.mark.parametrize("name", VALUES)
def test_distop_takes_the_words_of_its_containers(name: str, tmp_path: Path) -> None:
    specs = pods(rendered(tmp_path, VALUES[name]))
    for container in chain(*(s.get("initContainers", []) + s["containers"] for s in specs.values())):
        probes = [container[probe] for probe in ("startupProbe", "readinessProbe") if probe in container]
        lines = [probe["exec"]["command"][1:] for probe in probes if "exec" in probe]
        for words in [*lines, *([container["args"]] if "args" in container else [])]:
            try:
                parse(words)
            except typer.TyperException as error:
                pytest.fail(f"distop {' '.join(words)}: {error.format_message()}")


def test_settings_of_spark_win_over_those_of_the_chart(tmp_path: Path) -> None:
    (executor,) = pods(rendered(tmp_path, VALUES["all there is"]))["executor"]["containers"]
    conf = dict(
        word.removeprefix("--conf=").split("=", 1) for word in executor["args"] if word.startswith("--conf=")
    )
    assert (conf["spark.executor.memory"], conf["spark.speculation"]) == ("4g", "true")
    assert conf["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
