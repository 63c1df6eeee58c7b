"""The Helm chart on a real control plane: API server, controllers, scheduler, and Prometheus's definitions.

Nothing runs in the pods: they are made, admitted and placed on nodes that are pretended. ``make
test-kubernetes`` builds what is needed.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from distop.client import AsyncClient, Credentials
from distop.errors import Unauthenticated
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from support.kubernetes.chart import CHART, LEAST, REFUSED, VALUES
from support.kubernetes.control_plane import BUILT, PROGRAMS, ControlPlane, Refused, installed
from support.kubernetes.pretended_nodes import PretendedNodes
from support.repository import ROOT
from support.waiting import eventually

pytestmark = [
    pytest.mark.skipif(
        not installed("helm", *PROGRAMS), reason="Kubernetes is not there: make test-kubernetes"
    ),
    pytest.mark.process,
    pytest.mark.slow("needs helm, kubectl and the control plane of Kubernetes"),
    pytest.mark.timeout(600),
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
    nodes = PretendedNodes(made)
    try:
        for file in sorted((BUILT / "crds").iterdir()):
            made.kubectl("apply", "--server-side", "-f", str(file))
        made.kubectl("wait", "crd", "--all", "--for=condition=Established")
        nodes.add("node-0")
        nodes.add("node-1", disk="fast")
        nodes.add("node-2", disk="fast")
        nodes.start()
        yield made
        nodes.close()
    finally:
        made.close()


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A namespace that enforces the Pod Security Standard ``restricted``."""
    name = f"t{secrets.token_hex(4)}"
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
    yield name
    plane.run("kubectl", "delete", "namespace", name, "--wait=false")


def helm(plane: ControlPlane, command: str, namespace: str, values: dict[str, Any] | None = None) -> str:
    """What helm says; warnings are failures. Raises :class:`Refused`."""
    words = [*command.split(), RELEASE, f"--namespace={namespace}"]
    if values is None:
        said = plane.run("helm", *words)
    else:
        said = plane.run("helm", *words, str(CHART), "--values=-", given=yaml.safe_dump(values))
    if said.returncode != 0:
        raise Refused(said.stderr)
    assert said.stderr == ""
    return said.stdout


def rendered(plane: ControlPlane, namespace: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(helm(plane, "template --validate", namespace, values)) if one]


def of_release(plane: ControlPlane, namespace: str, kinds: str, component: str = "") -> list[dict[str, Any]]:
    selector = f"app.kubernetes.io/instance={RELEASE}"
    if component:
        selector += f",app.kubernetes.io/component={component}"
    return plane.read(kinds, f"--namespace={namespace}", f"--selector={selector}")


def names(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["kind"], one["metadata"]["name"]) for one in objects}


def rolled_out(plane: ControlPlane, namespace: str, replicas: dict[str, int]) -> bool:
    """Whether each deployment has so many pods of its newest kind that are available, and no others."""
    for deployment in of_release(plane, namespace, "deployment"):
        status = deployment["status"]
        wrong = [one for one in status.get("conditions", ()) if one["type"] == "ReplicaFailure"]
        assert not wrong, wrong
        count = replicas[deployment["metadata"]["labels"]["app.kubernetes.io/component"]]
        seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
        counts = {status.get(kind) for kind in ("replicas", "updatedReplicas", "availableReplicas")}
        if not seen or counts != {count}:
            return False
    return True


@pytest.mark.parametrize("name", VALUES)
def test_the_api_server_takes_every_rendering(plane: ControlPlane, namespace: str, name: str) -> None:
    """D1: strictly, and without a warning; the pod that Spark makes from its template, too."""
    objects = rendered(plane, namespace, VALUES[name])
    (worker,) = (yaml.safe_load(one["data"]["worker.yaml"]) for one in objects if one["kind"] == "ConfigMap")
    worker["metadata"]["name"] = "worker"
    options = ("--server-side", "--dry-run=server", "--validate=strict", f"--namespace={namespace}")
    given = yaml.safe_dump_all([*objects, worker])
    said = plane.run("kubectl", "apply", *options, "-f", "-", given=given)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.count("(server dry run)") == len(objects) + 1


async def test_a_release_is_installed_changed_and_removed(plane: ControlPlane, namespace: str) -> None:
    """D1: through all of the matrix and back: there are just the objects of these values, and all pods are
    admitted, placed and replaced."""
    command = "install"
    for name in [*VALUES, *reversed(VALUES)]:
        values = VALUES[name]
        helm(plane, command, namespace, values)
        command = "upgrade"
        assert names(of_release(plane, namespace, KINDS)) == names(rendered(plane, namespace, values)), name
        replicas = {one: values.get(one, {}).get("replicas", 2) for one in ("coordinator", "executor")}
        await eventually(lambda replicas=replicas: rolled_out(plane, namespace, replicas), 60.0, every_s=0.3)
    helm(plane, "uninstall", namespace)
    await eventually(lambda: not of_release(plane, namespace, KINDS + ",pods"), 60.0, every_s=0.3)


async def test_coordinators_are_spread_and_leave_one_by_one(plane: ControlPlane, namespace: str) -> None:
    """D1: whoever empties nodes is told to wait until the pod that it took away is replaced."""
    replicas = {"coordinator": 3, "executor": 2}
    helm(plane, "install", namespace, {**LEAST, "coordinator": {"insecure": True, "replicas": 3}})
    await eventually(lambda: rolled_out(plane, namespace, replicas), 60.0, every_s=0.3)
    coordinators, executors = (of_release(plane, namespace, "pods", kind) for kind in replicas)
    assert len({pod["spec"]["nodeName"] for pod in coordinators}) == 3
    assert len({pod["spec"]["nodeName"] for pod in executors}) == 2

    def allowed() -> int:
        (budget,) = of_release(plane, namespace, "poddisruptionbudget")
        return int(budget["status"]["disruptionsAllowed"])

    await eventually(lambda: allowed() == 1, every_s=0.3)
    # New pods find no node, and so none of them becomes ready.
    plane.kubectl("cordon", "node-0", "node-1", "node-2")
    try:
        first, second, _ = (pod["metadata"]["name"] for pod in coordinators)
        evict(plane, namespace, first)
        with pytest.raises(Refused, match="it would violate the pod's disruption budget"):
            evict(plane, namespace, second)
        assert allowed() == 0
    finally:
        plane.kubectl("uncordon", "node-0", "node-1", "node-2")
    await eventually(lambda: allowed() == 1, every_s=0.3)
    evict(plane, namespace, second)


def evict(plane: ControlPlane, namespace: str, pod: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    plane.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(body))


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


def test_executors_look_after_pods_nobody_else_may_do_anything(plane: ControlPlane, namespace: str) -> None:
    """D1, S3: of the service accounts that the chart makes."""
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
    """D1, U3: neither objects, nor a release that has failed."""
    for values, message in REFUSED.values():
        with pytest.raises(Refused) as refused:
            helm(plane, "install", namespace, values)
        assert message in str(refused.value)
    assert not of_release(plane, namespace, KINDS)
    # Where helm keeps its releases, also those that failed.
    assert not plane.read("secrets", f"--namespace={namespace}")


def here(
    plane: ControlPlane, namespace: str, component: str, swapped: dict[str, str]
) -> tuple[dict[str, Any], list[str], dict[str, str]]:
    """A pod of a component, and its command and environment, to run it here.

    ``swapped`` has options (all before the last ``=``) and what they are here instead.
    """
    pod = of_release(plane, namespace, "pods", component)[0]
    (container,) = pod["spec"]["containers"]
    known = {"POD_NAME": pod["metadata"]["name"], "POD_IP": "127.0.0.1"}
    words = [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], word) for word in container["args"]]
    words = [word for word in words if word.rpartition("=")[0] not in swapped]
    words += [f"{name}={value}" for name, value in swapped.items()]
    environment = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    return pod, [str(ROOT / ".venv" / "bin" / "distop"), *words], environment


def token_of_account(plane: ControlPlane, namespace: str, account: str, *options: str) -> str:
    return plane.kubectl("create", "token", account, f"--namespace={namespace}", *options).strip()


async def test_callers_are_known_by_their_service_accounts(
    plane: ControlPlane, namespace: str, etcd: EtcdProcess, prefix: str, tmp_path: Path
) -> None:
    """U5, S3: what a coordinator's pod would run, run here.

    It asks the API server for keys, as its own service account, which has no rights.
    """
    issuer = "https://kubernetes.default.svc.cluster.local"
    told = {"insecure": True, "replicas": 1, "serviceAccounts": issuer, "audience": "distop"}
    place = {"endpoints": [etcd.endpoint], "prefix": prefix}
    helm(plane, "install", namespace, {"etcd": place, "coordinator": told})
    replicas = {"coordinator": 1, "executor": 2}
    await eventually(lambda: rolled_out(plane, namespace, replicas), 60.0, every_s=0.3)
    (tmp_path / "token").write_text(token_of_account(plane, namespace, f"{RELEASE}-coordinator"))
    address = f"127.0.0.1:{free_port()}"
    swapped = {
        "--listen": address,
        "--web": "127.0.0.1:0",
        "--jwks=k8s": f"{plane.server}/openid/v1/jwks",
        "--issuer-ca=k8s": str(plane.folder / "ca.crt"),
        "--issuer-token-file=k8s": str(tmp_path / "token"),
    }
    _, words, environment = here(plane, namespace, "coordinator", swapped)
    plane.start("coordinator", *words, **environment)
    mine = Credentials(token=token_of_account(plane, namespace, "default", "--audience=distop"))
    other = Credentials(token=token_of_account(plane, namespace, "default"))
    async with AsyncClient(address, credentials=mine, connect_timeout_s=60) as client:
        assert (await client.grants()).subject == f"k8s:system:serviceaccount:{namespace}:default"
    async with AsyncClient(address, credentials=other, connect_timeout_s=60) as client:
        with pytest.raises(Unauthenticated, match="Audience"):
            await client.grants()
    plane.end("coordinator")


@pytest.mark.spark
async def test_an_executor_makes_its_workers_and_takes_them_away(
    plane: ControlPlane, namespace: str, etcd: EtcdProcess, prefix: str, tmp_path: Path
) -> None:
    """D1: what its pod would run, run here, with the token of its service account."""
    values = {
        "etcd": {"endpoints": [etcd.endpoint], "prefix": prefix},
        "coordinator": {"insecure": True, "replicas": 1},
        "executor": {"replicas": 1, "workers": {"instances": 3, "memory": "512m"}},
    }
    helm(plane, "install", namespace, values)
    replicas = {"coordinator": 1, "executor": 1}
    await eventually(lambda: rolled_out(plane, namespace, replicas), 60.0, every_s=0.3)
    (template,) = of_release(plane, namespace, "configmap")
    (tmp_path / "worker.yaml").write_text(template["data"]["worker.yaml"])
    (tmp_path / "token").write_text(token_of_account(plane, namespace, f"{RELEASE}-executor"))
    swapped = {
        "--master": f"k8s://{plane.server}",
        "--conf=spark.kubernetes.executor.podTemplateFile": str(tmp_path / "worker.yaml"),
        "--conf=spark.driver.port": "0",
        "--conf=spark.blockManager.port": "0",
        "--conf=spark.kubernetes.authenticate.caCertFile": str(plane.folder / "ca.crt"),
        "--conf=spark.kubernetes.authenticate.oauthTokenFile": str(tmp_path / "token"),
    }
    driver, words, environment = here(plane, namespace, "executor", swapped)
    plane.start("executor", *words, **environment, DISTOP_RUNTIME_DIR=str(tmp_path))

    def workers() -> list[dict[str, Any]]:
        return of_release(plane, namespace, "pods", "worker")

    await eventually(lambda: len(workers()) == 3, 100.0, every_s=0.5)
    for worker in workers():
        assert worker["spec"]["serviceAccountName"] == f"{RELEASE}-worker"
        assert [one["uid"] for one in worker["metadata"]["ownerReferences"]] == [driver["metadata"]["uid"]]
        # Where it is to find its driver.
        (container,) = (one for one in worker["spec"]["containers"] if one["name"] == "worker")
        told = {one["name"]: one.get("value", "") for one in container["env"]}
        assert "@127.0.0.1:" in told["SPARK_DRIVER_URL"]
    plane.end("executor")
    await eventually(lambda: not workers(), 60.0, every_s=0.5)
