"""The Helm chart on a real API server that knows the definitions of Prometheus's operator.

There are no controllers: objects are checked and stored, and nothing is made of them. ``make
test-kubernetes`` builds what is needed; without it these tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.kubernetes.chart import CHART, LEAST, REFUSED, VALUES
from support.kubernetes.control_plane import BUILT, PROGRAMS, ControlPlane, Refused, found

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not found("helm", *PROGRAMS), reason="Kubernetes is not there: make test-kubernetes"),
]

RELEASE = "flights"
KINDS = (
    "deployment,service,poddisruptionbudget,configmap,serviceaccount,role,rolebinding,networkpolicy,"
    "servicemonitor,podmonitor,prometheusrule"
)
"""All kinds that the chart has."""
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    made = ControlPlane(tmp_path_factory.mktemp("kubernetes"))
    asyncio.run(made.open())
    try:
        for file in sorted((BUILT / "crds").iterdir()):
            made.kubectl("apply", "--server-side", "-f", str(file))
        made.kubectl("wait", "crd", "--all", "--for=condition=Established")
        yield made
    finally:
        made.close()


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A namespace that enforces the Pod Security Standard ``restricted``."""
    name = f"t{secrets.token_hex(4)}"
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
    # As a controller would; pods have to be somebody's.
    plane.kubectl("create", "serviceaccount", "default", f"--namespace={name}")
    yield name
    plane.run("kubectl", "delete", "namespace", name, "--wait=false")


def helm(plane: ControlPlane, command: str, namespace: str, values: dict[str, Any] | None = None) -> str:
    """What helm says; warnings are failures. Raises :class:`Refused`."""
    words = [command, RELEASE, f"--namespace={namespace}"]
    if values is None:
        said = plane.run("helm", *words)
    else:
        said = plane.run("helm", *words, str(CHART), "--values=-", given=yaml.safe_dump(values))
    if said.returncode != 0:
        raise Refused(said.stderr)
    assert said.stderr == ""
    return said.stdout


def rendered(plane: ControlPlane, namespace: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(helm(plane, "template", namespace, values)) if one]


def of_release(plane: ControlPlane, namespace: str, kinds: str) -> list[dict[str, Any]]:
    selector = f"app.kubernetes.io/instance={RELEASE}"
    return plane.read(kinds, f"--namespace={namespace}", f"--selector={selector}")


def names(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["kind"], one["metadata"]["name"]) for one in objects}


@pytest.mark.parametrize("name", VALUES)
def test_the_api_server_takes_every_rendering(plane: ControlPlane, namespace: str, name: str) -> None:
    """Strictly, and without a warning; the pod that Spark makes from its template, too."""
    objects = rendered(plane, namespace, VALUES[name])
    (worker,) = (yaml.safe_load(one["data"]["worker.yaml"]) for one in objects if one["kind"] == "ConfigMap")
    worker["metadata"]["name"] = "worker"
    options = ("--server-side", "--dry-run=server", "--validate=strict", f"--namespace={namespace}")
    given = yaml.safe_dump_all([*objects, worker])
    said = plane.run("kubectl", "apply", *options, "-f", "-", given=given)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.count("(server dry run)") == len(objects) + 1


def test_a_release_is_installed_changed_and_removed(plane: ControlPlane, namespace: str) -> None:
    """Through all of the matrix and back: there are just the objects of these values."""
    command = "install"
    for name in [*VALUES, *reversed(VALUES)]:
        helm(plane, command, namespace, VALUES[name])
        command = "upgrade"
        assert names(of_release(plane, namespace, KINDS)) == names(rendered(plane, namespace, VALUES[name]))
    helm(plane, "uninstall", namespace)
    assert not of_release(plane, namespace, KINDS)


def rights(plane: ControlPlane, namespace: str, account: str) -> set[tuple[str, str]]:
    """Verbs and resources of a service account in its namespace."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    user = f"--as=system:serviceaccount:{namespace}:{account}"
    # To validate it, kubectl would ask for definitions, which such an account may not see.
    options = ("--validate=false", "--output=json", "--filename=-")
    said = plane.kubectl("create", user, *options, given=json.dumps(review))
    status = json.loads(said)["status"]
    assert not status["incomplete"]
    return {
        (verb, resource)
        for rule in status["resourceRules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


def test_executors_look_after_pods_and_nobody_else_may_do_anything(
    plane: ControlPlane, namespace: str
) -> None:
    helm(plane, "install", namespace, LEAST)
    nothing = rights(plane, namespace, "default")
    assert rights(plane, namespace, f"{RELEASE}-coordinator") == nothing
    assert rights(plane, namespace, f"{RELEASE}-worker") == nothing
    more = rights(plane, namespace, f"{RELEASE}-executor") - nothing
    looks, ends = ("get", "list", "watch"), ("delete", "deletecollection")
    makes = ("create", "patch", "update")
    assert more == {
        *((verb, kind) for verb in (*looks, *ends, *makes) for kind in ("pods", "configmaps")),
        *((verb, kind) for verb in (*looks, *ends) for kind in ("persistentvolumeclaims", "services")),
    }
    # As the server decides; and nothing of that beyond the namespace.
    for verb, kind, where, expected in [
        ("create", "pods", namespace, "yes"),
        ("create", "pods", "default", "no"),
        ("list", "pods", "kube-system", "no"),
        ("get", "secrets", namespace, "no"),
        ("create", "pods --subresource=exec", namespace, "no"),
        ("patch", "deployments.apps", namespace, "no"),
        ("create", "rolebindings.rbac.authorization.k8s.io", namespace, "no"),
    ]:
        user = f"--as=system:serviceaccount:{namespace}:{RELEASE}-executor"
        said = plane.run("kubectl", "auth", "can-i", verb, *kind.split(), user, f"--namespace={where}")
        assert said.stdout.strip() == expected, (verb, kind, where)


def test_refused_values_leave_nothing_behind(plane: ControlPlane, namespace: str) -> None:
    for values, message in REFUSED.values():
        with pytest.raises(Refused) as refused:
            helm(plane, "install", namespace, values)
        assert message in str(refused.value)
    assert not of_release(plane, namespace, KINDS)
    # Where helm keeps its releases, also those that failed.
    assert not plane.read("secrets", f"--namespace={namespace}")
