"""The Helm chart: what it renders is what Kubernetes takes, and values that make no sense are refused.

``make test-helm`` provides ``helm`` and ``kubernetes-validate``, which has strict schemas.
"""

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
from support.kubernetes.chart import CHART, LEAST, REFUSED, VALUES
from support.processes import captured
from support.repository import ROOT

PATH = os.pathsep.join([str(ROOT / ".venv" / "helm" / "bin"), os.environ.get("PATH", "")])
HELM, VALIDATE = shutil.which("helm", path=PATH), shutil.which("kubernetes-validate", path=PATH)

pytestmark = [
    pytest.mark.skipif(not (HELM and VALIDATE), reason="helm is not there: make test-helm"),
    pytest.mark.process,
    pytest.mark.slow("needs helm, and kubernetes-validate"),
]

KUBERNETES = ("1.29", "1.31", "1.33", "1.35", "1.37")


def helm(
    folder: Path,
    command: str,
    values: dict[str, Any],
    version: str = "1.31",
    release: str = "flights",
    namespace: str = "data",
) -> subprocess.CompletedProcess[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    names = [release, str(CHART)] if command == "template" else [str(CHART), "--strict"]
    return captured(
        [
            str(HELM),
            command,
            *names,
            f"--namespace={namespace}",
            f"--kube-version={version}",
            f"--values={file}",
        ],
        timeout=120,
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
    """D1: strictly, with the least values, one of each, and all that there are."""
    said = helm(tmp_path, "lint", VALUES[name])
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_takes_what_is_rendered(name: str, version: str, tmp_path: Path) -> None:
    """D1: strictly: an unknown field is an error. What Prometheus's operator brings is not in the schemas."""
    objects = rendered(tmp_path, VALUES[name], version)
    ours = [one for one in objects if not one["apiVersion"].startswith("monitoring.")]
    assert len(objects) - len(ours) == 3 * (name == "all there is")
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(ours))
    said = captured([str(VALIDATE), "--strict", "-k", version, str(file)])
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
    """D1: as the Pod Security Standard of that name asks for, and read-only besides."""
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
    """D1, S5: tasks of Spark cannot read its password."""
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
    conf = spark_settings(pods(rendered(tmp_path, VALUES["all there is"])))
    assert (conf["spark.executor.memory"], conf["spark.speculation"]) == ("4g", "true")
    assert conf["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
    assert (conf["spark.blockManager.port"], conf["spark.sql.files.maxPartitionBytes"]) == ("0", "134217728")


def test_policies_name_no_port_of_a_sidecar(tmp_path: Path) -> None:
    """Network plugins may look for names among the containers that are none: calico did."""
    objects = rendered(tmp_path, VALUES["all there is"])
    policies = {one["metadata"]["name"]: one for one in objects if one["kind"] == "NetworkPolicy"}
    (sidecar,) = pods(objects)["worker"]["initContainers"]
    let_in = [
        port["port"]
        for rule in policies["flights-worker"]["spec"]["ingress"]
        for port in rule.get("ports", ())
    ]
    assert let_in == [port["containerPort"] for port in sidecar["ports"]]


@pytest.mark.parametrize("release", ["on", "null"])
def test_releases_and_namespaces_that_yaml_misunderstands_are_names(release: str, tmp_path: Path) -> None:
    values = {**LEAST, "monitoring": {"podMonitor": True}}
    said = helm(tmp_path, "template", values, release=release, namespace="123")
    found = [one for one in yaml.safe_load_all(said.stdout) if one]
    for one in found:
        assert str(one["metadata"]["name"]).startswith(release)
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == release
    (binding,) = (one for one in found if one["kind"] == "RoleBinding")
    assert binding["subjects"][0]["namespace"] == "123"


def spark_settings(specs: dict[str, dict[str, Any]]) -> dict[str, str]:
    (executor,) = specs["executor"]["containers"]
    words = [word.removeprefix("--conf=") for word in executor["args"] if word.startswith("--conf=")]
    return dict(word.split("=", 1) for word in words)


@pytest.mark.parametrize("name", VALUES)
def test_workers_get_a_folder_once_and_the_address_of_their_driver(name: str, tmp_path: Path) -> None:
    """Spark mounts its local folders unless the template has mounts called like its own, and since 4.1 tells
    workers the address that the driver is bound to."""
    specs = pods(rendered(tmp_path, VALUES[name]))
    conf, (worker,) = spark_settings(specs), specs["worker"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in worker["volumeMounts"]}
    assert mounts[conf["spark.local.dir"]].startswith("spark-local-dir-")
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "$(POD_IP)"


@pytest.mark.parametrize("release", ["1st", "flights.eu"])
def test_releases_whose_services_could_not_be_called_so_are_refused(release: str, tmp_path: Path) -> None:
    said = helm(tmp_path, "template", LEAST, release=release)
    assert said.returncode != 0
    assert f"letters, digits and dashes, a letter first, as its services are: not {release}" in said.stderr
