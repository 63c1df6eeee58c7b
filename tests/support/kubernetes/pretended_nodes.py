"""Nodes on which nothing runs: objects, and a thread that says what kubelets say when all goes well."""

import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any

from support.kubernetes.control_plane import ControlPlane, token_of

EVERY_S, HEARTBEAT_S = 0.3, 10.0
"""How often they look at pods; and say that they are there: a node that is silent for 50 s gets no pods."""


class PretendedNodes:
    """Nodes that are ready; pods there become ready at once. Pods that are deleted go."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._context = ssl.create_default_context(cafile=str(plane.folder / "ca.crt"))
        self._names: list[str] = []
        self._beat_at = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="nodes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(30)

    def add(self, name: str, **labels: str) -> None:
        """A node, with labels of its own."""
        labels = {"kubernetes.io/hostname": name, **labels}
        self._plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        self._beat(name)
        self._names.append(name)

    def _beat(self, name: str) -> None:
        amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "Pretended", "lastHeartbeatTime": _now()}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self._call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def _serve(self) -> None:
        while not self._ended.wait(EVERY_S):
            if time.monotonic() > self._beat_at + HEARTBEAT_S:
                self._beat_at = time.monotonic()
                for name in self._names:
                    self._beat(name)
            for pod in self._call("GET", "/api/v1/pods")["items"]:
                # Somebody else may have removed it meanwhile.
                try:
                    self._look_after(pod)
                except urllib.error.HTTPError as error:
                    if error.code not in (404, 409):
                        raise

    def _look_after(self, pod: dict[str, Any]) -> None:
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        if "deletionTimestamp" in about:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": about["uid"]}}
            self._call("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
        elif "nodeName" in pod["spec"] and pod["status"]["phase"] == "Pending":
            kinds = ("Initialized", "ContainersReady", "Ready")
            conditions = [{"type": kind, "status": "True", "lastTransitionTime": _now()} for kind in kinds]
            self._call("PATCH", f"{path}/status", {"status": {"phase": "Running", "conditions": conditions}})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        # By their types conditions are merged with those that are there.
        kind = "strategic-merge-patch+json" if method == "PATCH" else "json"
        request = urllib.request.Request(
            self._plane.server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token_of('admin')}", "Content-Type": f"application/{kind}"},
        )
        with urllib.request.urlopen(request, context=self._context, timeout=30) as response:
            return json.load(response)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
