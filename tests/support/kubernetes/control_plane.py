"""A control plane of Kubernetes as a test's own processes: what a chart is applied to.

``deploy/kubernetes.sh`` builds the programs.
"""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import trustme
import yaml

from distop.metastore.etcd.embedded import find_etcd, free_port
from support.processes import captured, end
from support.repository import ROOT
from support.waiting import eventually

BUILT = ROOT / ".venv" / "kubernetes"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
PATH = os.pathsep.join([str(BUILT / "bin"), str(ROOT / ".venv" / "helm" / "bin"), os.environ.get("PATH", "")])
PATIENCE_S = 120
"""Of one command."""

MASTERS = "system:masters"
"""The group that may do everything."""

USERS = {"admin": MASTERS, "system:kube-controller-manager": "", "system:kube-scheduler": ""}
"""Who has a token, and the group that they are in."""


def installed(*names: str) -> bool:
    """Whether all programs of these names are on :data:`PATH`."""
    return all(shutil.which(name, path=PATH) for name in names)


class Refused(Exception):
    """A command failed; the message is what it wrote to its standard error."""


class ControlPlane:
    """etcd, API server, controllers and scheduler.

    ``address`` is where the API server listens, ``within`` the words that start a command where that address
    is (``ip netns exec NAME``; by default here). What they say is in files of ``folder``.
    """

    def __init__(self, folder: Path, *, address: str = "127.0.0.1", within: Sequence[str] = ()) -> None:
        self.folder, self.address, self.within = folder, address, tuple(within)
        self.port = free_port()
        self._stack = contextlib.ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{self.address}:{self.port}"

    def start(self, name: str, *words: str, **environment: str) -> None:
        """Start a program, which :meth:`close` ends; what it says goes to ``NAME.log``."""
        program = shutil.which(words[0], path=PATH)
        assert program is not None, words[0]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.within, program, *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": PATH, **environment},
            )
        self._processes[name] = process
        self._stack.callback(end, process)

    def run(self, *words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with the rights of ``admin``."""
        environment = {**os.environ, "PATH": PATH, "KUBECONFIG": str(self.config("admin"))}
        for kind in ("CACHE", "CONFIG", "DATA"):
            environment[f"HELM_{kind}_HOME"] = str(self.folder / "helm")
        environment["KUBECACHEDIR"] = str(self.folder / "kubectl")
        program = shutil.which(words[0], path=PATH)
        assert program is not None, words[0]
        return captured([*self.within, program, *words[1:]], input=given, env=environment, timeout=PATIENCE_S)

    def done(self, *words: str, given: str | None = None) -> str:
        """Run a command that must succeed; its standard output. Raises :class:`Refused`."""
        result = self.run(*words, given=given)
        if result.returncode != 0:
            raise Refused(result.stderr)
        return result.stdout

    def kubectl(self, *words: str, given: str | None = None) -> str:
        """Run ``kubectl`` as :meth:`done` does."""
        return self.done("kubectl", *words, given=given)

    def read(self, *words: str) -> list[dict[str, Any]]:
        """The objects that ``kubectl get`` finds."""
        listed = json.loads(
            self.kubectl("get", *words, "--output=json", "--ignore-not-found") or '{"items": []}'
        )
        items: list[dict[str, Any]] = listed.get("items", [listed])
        return items

    def apply(self, *objects: dict[str, Any], options: Sequence[str] = ()) -> str:
        """Apply objects, strictly: an unknown field is an error."""
        given = yaml.safe_dump_all(objects)
        return self.kubectl("apply", "--server-side", "--validate=strict", *options, "-f", "-", given=given)

    def config(self, user: str, server: str | None = None) -> Path:
        """A kubeconfig with the token of a user."""
        file = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        if not file.exists():
            cluster = {"server": server or self.server, "certificate-authority": str(self.folder / "ca.crt")}
            config = {
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token_of(user)}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": user}}],
                "current-context": "it",
            }
            file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **config}))
            file.chmod(0o600)
        return file

    async def open(self) -> Self:
        """Start it all; returns once the API server is ready and the controllers have begun."""
        try:
            self._keys()
            self._start_etcd()
            self._start_server()
            await eventually(lambda: self._answers("/readyz"), 60.0, every_s=0.2)
            self._start_controllers()
            await eventually(lambda: self.read("serviceaccount", "default"), 60.0, every_s=0.2)
        except BaseException:
            self.close()
            raise
        return self

    def end(self, name: str) -> None:
        """End one program, and wait for that."""
        end(self._processes[name])

    def close(self) -> None:
        """End it all."""
        self._stack.close()

    def _answers(self, path: str) -> bool:
        ended = {name: process.returncode for name, process in self._processes.items() if process.poll()}
        assert not ended, (ended, {name: self.log(name)[-2000:] for name in ended})
        return self.run("kubectl", "get", "--raw", path).returncode == 0

    def log(self, name: str) -> str:
        """What a program has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _keys(self) -> None:
        ca = trustme.CA()
        ca.cert_pem.write_to_path(self.folder / "ca.crt")
        names = [self.address, "127.0.0.1", "10.96.0.1", "localhost", "kubernetes.default.svc"]
        certificate = ca.issue_cert(*names)
        certificate.private_key_pem.write_to_path(self.folder / "server.key")
        for number, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(self.folder / "server.crt", append=number > 0)
        # Signs the tokens of service accounts.
        signing = trustme.CA(key_type=trustme.KeyType.RSA)
        signing.private_key_pem.write_to_path(self.folder / "accounts.key")
        lines = [f'{token_of(user)},{user},{user},"{group}"' for user, group in USERS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")

    def _start_etcd(self) -> None:
        self._etcd = f"http://127.0.0.1:{free_port()}"
        peers = f"http://127.0.0.1:{free_port()}"
        self.start(
            "etcd",
            str(find_etcd().path),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            # What is lost when the machine stops is of no use to anybody.
            "--unsafe-no-fsync",
        )

    def _start_server(self) -> None:
        self.start(
            "kube-apiserver",
            "kube-apiserver",
            f"--etcd-servers={self._etcd}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            # It would publish that address to pods, and loopback is none for them.
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--cert-dir={self.folder}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=false",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self.folder / 'accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
        )

    def _start_controllers(self) -> None:
        for name, more in {
            "kube-controller-manager": (
                "--use-service-account-credentials",
                f"--service-account-private-key-file={self.folder / 'accounts.key'}",
                f"--root-ca-file={self.folder / 'ca.crt'}",
            ),
            "kube-scheduler": (),
        }.items():
            config = self.config(f"system:{name}")
            self.start(
                name,
                name,
                f"--kubeconfig={config}",
                f"--authentication-kubeconfig={config}",
                f"--authorization-kubeconfig={config}",
                "--bind-address=127.0.0.1",
                f"--secure-port={free_port()}",
                f"--cert-dir={self.folder}",
                "--leader-elect=false",
                *more,
            )


def token_of(user: str) -> str:
    """Guessable: the server listens on an address of this machine alone, and for a test."""
    return f"token-of-{user.replace(':', '-')}"
